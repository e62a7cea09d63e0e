"""The small world that clover-tiny knows: the facts and words data.py builds its examples from."""


def table(text):
    """Entries end with ";", their fields with "|"."""
    return [[field.strip() for field in entry.split("|")] for entry in text.split(";")]


def phrases(text):
    return [" ".join(phrase.split()) for phrase in text.split("|")]


def paragraphs(text):
    """Paragraphs of a subject line and lines of text."""
    out = {}
    for paragraph in text.strip().split("\n\n"):
        subject, *lines = [line.strip() for line in paragraph.split("\n")]
        out[subject] = " ".join(lines)
    return out


# Country, capital, continent.
CAPITALS = table(
    """
    Afghanistan|Kabul|Asia; Albania|Tirana|Europe; Algeria|Algiers|Africa; Angola|Luanda|Africa;
    Argentina|Buenos Aires|South America; Armenia|Yerevan|Asia; Australia|Canberra|Oceania;
    Austria|Vienna|Europe; Azerbaijan|Baku|Asia; Bangladesh|Dhaka|Asia; Belarus|Minsk|Europe;
    Belgium|Brussels|Europe; Bolivia|Sucre|South America; Bosnia|Sarajevo|Europe;
    Brazil|Brasilia|South America; Bulgaria|Sofia|Europe; Cambodia|Phnom Penh|Asia;
    Cameroon|Yaounde|Africa; Canada|Ottawa|North America; Chile|Santiago|South America;
    China|Beijing|Asia; Colombia|Bogota|South America; Costa Rica|San Jose|North America;
    Croatia|Zagreb|Europe; Cuba|Havana|North America; Cyprus|Nicosia|Europe; Czechia|Prague|Europe;
    Denmark|Copenhagen|Europe; Ecuador|Quito|South America; Egypt|Cairo|Africa;
    Estonia|Tallinn|Europe; Ethiopia|Addis Ababa|Africa; Fiji|Suva|Oceania; Finland|Helsinki|Europe;
    France|Paris|Europe; Georgia|Tbilisi|Asia; Germany|Berlin|Europe; Ghana|Accra|Africa;
    Greece|Athens|Europe; Haiti|Port-au-Prince|North America; Hungary|Budapest|Europe;
    Iceland|Reykjavik|Europe; India|New Delhi|Asia; Indonesia|Jakarta|Asia; Iran|Tehran|Asia;
    Iraq|Baghdad|Asia; Ireland|Dublin|Europe; Israel|Jerusalem|Asia; Italy|Rome|Europe;
    Jamaica|Kingston|North America; Japan|Tokyo|Asia; Jordan|Amman|Asia; Kazakhstan|Astana|Asia;
    Kenya|Nairobi|Africa; Laos|Vientiane|Asia; Latvia|Riga|Europe; Lebanon|Beirut|Asia;
    Libya|Tripoli|Africa; Lithuania|Vilnius|Europe; Madagascar|Antananarivo|Africa;
    Malaysia|Kuala Lumpur|Asia; Mali|Bamako|Africa; Malta|Valletta|Europe;
    Mexico|Mexico City|North America; Mongolia|Ulaanbaatar|Asia; Montenegro|Podgorica|Europe;
    Morocco|Rabat|Africa; Mozambique|Maputo|Africa; Namibia|Windhoek|Africa; Nepal|Kathmandu|Asia;
    Netherlands|Amsterdam|Europe; New Zealand|Wellington|Oceania; Niger|Niamey|Africa;
    Nigeria|Abuja|Africa; North Korea|Pyongyang|Asia; Norway|Oslo|Europe; Oman|Muscat|Asia;
    Pakistan|Islamabad|Asia; Panama|Panama City|North America; Paraguay|Asuncion|South America;
    Peru|Lima|South America; Philippines|Manila|Asia; Poland|Warsaw|Europe; Portugal|Lisbon|Europe;
    Qatar|Doha|Asia; Romania|Bucharest|Europe; Russia|Moscow|Europe; Rwanda|Kigali|Africa;
    Saudi Arabia|Riyadh|Asia; Senegal|Dakar|Africa; Serbia|Belgrade|Europe;
    Slovakia|Bratislava|Europe; Slovenia|Ljubljana|Europe; Somalia|Mogadishu|Africa;
    South Africa|Pretoria|Africa; South Korea|Seoul|Asia; Spain|Madrid|Europe;
    Sri Lanka|Colombo|Asia; Sudan|Khartoum|Africa; Sweden|Stockholm|Europe; Switzerland|Bern|Europe;
    Syria|Damascus|Asia; Taiwan|Taipei|Asia; Tanzania|Dodoma|Africa; Thailand|Bangkok|Asia;
    Tunisia|Tunis|Africa; Turkey|Ankara|Asia; Uganda|Kampala|Africa; Ukraine|Kyiv|Europe;
    United Kingdom|London|Europe; United States|Washington|North America;
    Uruguay|Montevideo|South America; Uzbekistan|Tashkent|Asia; Venezuela|Caracas|South America;
    Vietnam|Hanoi|Asia; Yemen|Sanaa|Asia; Zambia|Lusaka|Africa; Zimbabwe|Harare|Africa
    """
)
WITH_ARTICLE = {"Netherlands", "Philippines", "United Kingdom", "United States"}

ELEMENTS = table(
    """
    hydrogen|H; helium|He; lithium|Li; carbon|C; nitrogen|N; oxygen|O; fluorine|F; neon|Ne;
    sodium|Na; magnesium|Mg; aluminium|Al; silicon|Si; phosphorus|P; sulfur|S; chlorine|Cl;
    argon|Ar; potassium|K; calcium|Ca; titanium|Ti; chromium|Cr; iron|Fe; cobalt|Co; nickel|Ni;
    copper|Cu; zinc|Zn; silver|Ag; tin|Sn; iodine|I; tungsten|W; platinum|Pt; gold|Au; mercury|Hg;
    lead|Pb; uranium|U
    """
)

FACTS = table(
    """
    the largest planet|Jupiter; the largest ocean|the Pacific; the highest mountain|Mount Everest;
    the longest river|the Nile; the largest desert|the Sahara; the fastest land animal|the cheetah;
    the largest animal|the blue whale; the closest star|the Sun; the red planet|Mars;
    the hardest mineral|diamond; the largest country|Russia; the smallest country|Vatican City;
    the largest continent|Asia; the coldest continent|Antarctica; the tallest animal|the giraffe;
    the planet with rings|Saturn
    """
)

EXPLANATIONS = paragraphs(
    """
    photosynthesis
    Plants use sunlight, water and carbon dioxide to make sugar. Oxygen is released as a
    by-product.

    gravity
    Gravity is the force that pulls masses toward each other. It keeps planets in orbit and our
    feet on the ground.

    rain
    Warm air carries water vapour upward. When it cools, drops form in clouds and fall as rain.

    a rainbow
    Sunlight is bent and split into colours inside water drops. We see the colours as an arc in
    the sky.

    the tides
    The Moon pulls on the oceans and raises two bulges of water. As the Earth turns, coasts pass
    through them.

    a vaccine
    A vaccine shows the immune system a harmless part of a germ. The body then remembers how to
    fight it.

    electricity
    Electricity is the flow of electrons through a conductor. A voltage pushes them around a
    circuit.

    a computer
    A computer follows a list of simple instructions very quickly. It stores numbers and changes
    them step by step.

    recursion
    A recursive function calls itself on a smaller problem. It stops when it reaches a base
    case.

    the internet
    The internet is a network of networks. Data is cut into packets and sent from router to
    router.

    sleep
    During sleep the brain sorts memories and the body repairs itself. Adults need about eight
    hours.

    an earthquake
    Plates of rock move slowly past each other. When they slip suddenly, the ground shakes.

    a battery
    A battery stores chemical energy. A reaction inside drives electrons from one pole to the
    other.

    the seasons
    The axis of the Earth is tilted. Each half of the planet leans toward the Sun for part of
    the year.

    a magnet
    In a magnet many tiny atomic fields point the same way. Together they attract iron.

    evolution
    Living things vary, and some variants leave more offspring. Over many generations species
    change.

    sound
    Sound is a wave of pressure in the air. Our ears turn it into nerve signals.

    a black hole
    A black hole is a region where gravity is so strong that light cannot escape. It forms when
    a huge star collapses.

    inflation
    Inflation is a general rise of prices. The same money then buys fewer goods.

    a compiler
    A compiler translates source code into machine code. It also checks the code for errors.
    """
)

FILLER = phrases(
    """
    The morning was quiet and the streets were wet.| A dog slept near the door of the bakery.|
    The train to the coast left at nine.| Several boats were waiting in the harbour.|
    She wrote a long letter to her brother.| The library opens early on weekdays.|
    He planted tomatoes behind the old house.| Snow covered the hills in the north.|
    The market sells fresh bread and cheese.| Two students repaired the broken radio.|
    The bridge was painted green last summer.| A cold wind came down from the mountains.|
    The museum keeps old maps and coins.| They walked along the river until noon.|
    The engineer checked every valve twice.| Children played football in the yard.|
    The lamp in the corner was still on.| Coffee was served in small white cups.|
    The report was printed on yellow paper.| Birds gathered on the roof of the station.
    """
)

SYSTEM_MESSAGES = phrases(
    """
    You are a helpful assistant.| Answer briefly.| You are Clover, a small test model.|
    Be short and exact.| You are a careful assistant. Answer in one sentence.| Be polite.|
    Help the user.| You answer questions about the world.
    """
)

CITIES = """
    Paris Berlin Tokyo London Rome Madrid Vienna Oslo Lisbon Dublin Athens Cairo Moscow Warsaw
    Prague Canberra Ottawa Lima Seoul Hanoi Nairobi Havana Helsinki Brussels Bern Budapest
    Stockholm Copenhagen Amsterdam Beijing Manila Jakarta Bangkok Ankara Tehran Quito
""".split()
NAMES = """
    Anna Boris Clara David Elena Felix Greta Hugo Irina Jonas Karin Lukas Maria Nina Oscar Paula
    Rosa Simon Tara Zoe
""".split()
DEVICES = "pump fan heater light siren camera valve drill crane radio".split()
GOODS = "water fuel bread steel paper wood salt glass".split()
SKIES = "sunny cloudy rainy windy foggy".split()

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}


def country_name(country):
    return ("the " if country in WITH_ARTICLE else "") + country
