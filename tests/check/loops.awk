# objdump -d -> per function the innermost loop that does most multiply-adds:
#   loop OBJECT FUNCTION INSTRUCTIONS/MULTIPLY-ADDS
# A loop is what lies between a backward jump and its target. Products of bytes count where a
# function has them (a whole tile's for an instruction on tiles), float multiply-adds elsewhere.
# Padding counts as nothing.
function work(op, args,    width) {
    width = args ~ /%zmm/ ? 64 : args ~ /%ymm/ ? 32 : 16
    if (op ~ /^vpdpbusd/) return width
    if (op ~ /^tdpb/) return 16 * 16 * 64
    if (op ~ /^vf(n?m)(add|sub)...ps/) { floats[n] = width / 4 }
    return 0
}
function finish(    i, j, l, m, inner, best, ins, bytes) {
    bytes = 0
    for (i = 0; i < n; i++) bytes += dots[i]
    for (i = 0; i < n; i++) {
        done[i + 1] = done[i] + (bytes ? dots[i] : floats[i])
        real[i + 1] = real[i] + !padding[i]
    }
    best = 0
    for (l = 0; l < loops; l++) {
        if (!(target[l] in at)) continue
        from[l] = at[target[l]]
        if (from[l] > to[l]) continue
        m = done[to[l] + 1] - done[from[l]]
        inner = 1
        for (j = 0; j < loops && m > best; j++)
            if (j != l && (target[j] in at) && at[target[j]] <= to[j] && at[target[j]] >= from[l] &&
                to[j] <= to[l] && (at[target[j]] > from[l] || to[j] < to[l]) &&
                done[to[j] + 1] > done[at[target[j]]]) inner = 0
        if (m > best && inner) { best = m; ins = real[to[l] + 1] - real[from[l]] }
    }
    if (best) printf "loop %s %s %.6f\n", object, name, ins / best
}
function clear() { n = loops = 0; split("", at); split("", dots); split("", floats); split("", padding) }
/file format/ { finish(); clear(); object = $1; sub(/.*\//, "", object); sub(/\.o:$/, "", object) }
/^[0-9a-f]+ <.*>:$/ { finish(); clear(); name = $2; gsub(/[<>:]/, "", name); next }
/^ *[0-9a-f]+:\t/ {
    split($0, part, "\t")
    address = part[1]; gsub(/[ :]/, "", address)
    sub(/^[{][a-z0-9]+[}] */, "", part[2])
    op = part[2]; sub(/ .*/, "", op)
    at[address] = n
    padding[n] = op ~ /^(nop|data16|cs|xchg)/
    dots[n] = work(op, part[2])
    if (op ~ /^j/) { split(part[2], word, / +/); target[loops] = word[2]; to[loops++] = n }
    n++
}
END { finish() }
