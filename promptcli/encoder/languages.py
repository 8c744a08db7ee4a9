"""Which language in Latin letters a text is in, by its function words.

The lists hold the commonest articles, pronouns, prepositions, conjunctions and forms of "to be",
without those that are English words or parts of well-known names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|[¿¡]")

_TEXTS, _CHARACTERS = 200, 1000  #: that are looked at, and of each text
_SENTENCE = 5  #: words; names have fewer

_ENGLISH = frozenset(
    "the of and to a in is it that for was on are as with his they at be this from have or by one"
    " had not but what all were when we there can an your which their if do will how each about"
    " out many then them she her would like him into has who its no make my did than been now any"
    " our may me he you i so because these those where why just over after before while until could"
    " should does more some only very".split()
)
_LANGUAGES = {
    "German": (
        "der das und ist nicht ein eine einen einem einer eines ich sie wir ihr es mit auf"
        " für von zu zum zur im dem den des auch sich wie bei aus nach oder aber wenn noch nur"
        " sind wird werden wurde wurden haben hat hatte kein keine keinen über unter durch"
        " gegen ohne bis seit vor zwischen mein meine dein seine ihre unser unsere bitte sehr"
        " schon mehr dass weil kann können muss müssen soll gibt wo wer warum heute gestern"
        " als beim vom ins"
    ),
    "French": (
        "le les des du une est et dans pour pas que qui sur avec plus ce cette ces son sa ses"
        " nous vous ils elle elles je il au aux ne se sont était être avoir ont mais ou où"
        " donc par sans très mon ma mes votre notre leur comme tout tous fait peut depuis"
        " entre chez quand aujourd'hui hier déjà encore y a c'est n'est d'une qu'il"
    ),
    "Spanish": (
        "el los las una unos del que en y por con para se es está están son fue ser como más"
        " pero su sus lo le les al este esta estos ese eso muy sin sobre también hay ya mi tu"
        " nos nuestro nuestra ha han desde cuando donde qué quién porque entre hasta hoy ayer"
        " todos todo cada tiene tienen puede"
    ),
    "Portuguese": (
        "os as uma um dos das do da que em por com para não é são está foi ser como mais mas"
        " seu sua se ao aos na nos nas pelo pela este esta isso muito sem também há já meu"
        " minha nosso nossa ele ela eles quando onde porque entre até hoje ontem tem têm pode"
        " foram"
    ),
    "Italian": (
        "il lo gli una uno del della dei delle degli che di per con è sono non si nel nella"
        " alla al dal dalla sul sulla più ma anche come questo questa questi quello suo sua"
        " mio mia nostro io lui lei noi voi loro ha hanno era erano essere quando dove perché"
        " senza tra fra molto oggi ieri già ogni tutti tutto può"
    ),
    "Dutch": (
        "het een en van niet dat die met voor op te zijn aan er maar om ook als dan bij naar"
        " uit nog wel geen ik je jij hij zij wij ze deze dit wordt worden werd heeft hebben"
        " had kan moet zal door over zonder onze mijn uw hun wat wie waar waarom vandaag"
        " gisteren al meer veel"
    ),
    "Turkish": (
        "ve bir bu için ile da de çok değil mi mı mu mü ne var yok daha gibi ama kadar sonra"
        " önce her en olan olarak oldu o ben sen biz siz onlar benim bizim şu hangi nasıl"
        " neden bugün dün çünkü ya hiç şey ki ise lütfen tüm bazı henüz artık göre"
    ),
    "Polish": (
        "i w z na do nie się jest że to jak ale po od za przez dla przy czy tak już tylko są"
        " był była było być ten ta te tego tej które który która jego jej ich moja mój nasz"
        " nasza bardzo może gdzie kiedy dlaczego dzisiaj wczoraj oraz lub bez pod nad przed we"
        " ze"
    ),
    "Swedish": (
        "och att det som en ett är på för med av till den inte har de om vi han hon jag du"
        " var kan från eller men när ska skulle hade finns mycket här där vad varför idag igår"
        " utan efter också min vår deras denna detta blir blev sin sitt"
    ),
    "Danish or Norwegian": (
        "og at det som en et er på for med av af til den ikke har de om vi han hun jeg du var"
        " kan fra eller men når skal ville hadde havde finnes meget her der hva hvad hvorfor"
        " idag uten uden etter efter også min vår vores deres denne dette blir blev sin sitt"
    ),
    "Finnish": (
        "ja on ei se että oli ovat hän minä sinä me te he mutta tai kun niin kuin joka jos"
        " mitä mikä missä miksi tämä tämän ne jo vain myös ole olen ollut voi kanssa ennen"
        " jälkeen hyvin tänään eilen kaikki vielä koska"
    ),
    "Czech": (
        "a je se na v že to s z do o ve pro jsou byl byla bylo být ale jak jako po od za při"
        " který která které není nebo už jen také tak když kde proč dnes včera můj naše jeho"
        " její velmi může jsem jsme ze ke"
    ),
    "Romanian": (
        "și în la cu nu este sunt că pe din pentru un o de se care mai fost a au ce dar sau"
        " ca prin după fără foarte acest această lui ei noi voi unde când astăzi ieri nostru"
        " poate trebuie"
    ),
    "Hungarian": (
        "a az és egy nem hogy is van volt ez azt de meg csak már mint vagy ha el még aki ami"
        " mert lehet kell minden nagyon nincs vannak én te ő mi ti ők hol mikor miért ma"
        " tegnap után"
    ),
    "Indonesian or Malay": (
        "yang dan di ini itu dengan untuk tidak dari dalam adalah pada akan saya kami kita"
        " mereka dia ada bisa sudah juga oleh atau karena telah tetapi lebih hanya sangat"
        " belum seperti kepada hari"
    ),
}
_WORDS = {
    name: frozenset(word for word in words.split() if len(word) > 1) - _ENGLISH
    for name, words in _LANGUAGES.items()
}
#: Words that are parts of names, too: they count beside others only.
_IN_NAMES = frozenset(
    "la de el le les los las du des del der den das dem von vom van da di do dos una un uno en et"
    " al se con per il lo san die pro".split()
)
_WEAK = {
    "German": frozenset({"die", "in", "an", "am"}),
    "French": frozenset({"la", "de", "à", "en"}),
    "Spanish": frozenset({"la", "de", "no"}),
    "Portuguese": frozenset({"o", "e", "de", "no"}),
    "Italian": frozenset({"la", "le", "i", "e", "da", "in"}),
    "Dutch": frozenset({"de", "in", "is"}),
}
_SURE = {name: words - _IN_NAMES for name, words in _WORDS.items()}
_PARTS_OF_NAMES = {
    name: words & _IN_NAMES | _WEAK.get(name, frozenset()) for name, words in _WORDS.items()
}
#: Word -> the languages that have it.
_LANGUAGES_WITH = {
    word: [name for name in _WORDS if word in _SURE[name] | _PARTS_OF_NAMES[name]]
    for word in frozenset[str]().union(*_SURE.values(), *_PARTS_OF_NAMES.values())
}
#: Words with these letters are of the language.
_LETTERS = {
    "German": re.compile("ß"),
    "Spanish": re.compile("[¿¡]"),
    "Turkish": re.compile("[ğşı]"),
    "Polish": re.compile("[łśźżąęćń]"),
    "Czech": re.compile("[řěů]"),
    "Romanian": re.compile("[țășâ]"),
    "Hungarian": re.compile("[őű]"),
}
#: Common words that are whole tokens of a model that has learned the language.
_COMMON = {
    "German": "heute gestern machen wissen müssen woche frage antwort schreiben schlafen",
    "French": "beaucoup semaine toujours réponse écrire dormir vouloir acheter travail enfant",
    "Spanish": "semana siempre respuesta escribir dormir comprar trabajo pregunta mañana nunca",
    "Portuguese": "semana sempre resposta escrever dormir comprar trabalho pergunta amanhã nunca",
    "Italian": "settimana sempre risposta scrivere dormire comprare lavoro domanda domani bambino",
    "Dutch": "vandaag gisteren maken weten moeten vraag antwoord schrijven slapen kopen",
    "Turkish": "bugün hafta çocuk soru cevap yeni güzel zaman büyük insan kadın",
    "Polish": "tydzień zawsze odpowiedź pisać pytanie dziecko praca jutro bardzo kobieta",
    "Swedish": "vecka alltid svar skriva köpa fråga arbete människor kvinna pengar",
    "Danish or Norwegian": "alltid altid svar skrive spørsmål arbejde mennesker kvinde penge uke",
    "Finnish": "viikko aina vastaus kirjoittaa ostaa kysymys työ huomenna ihmiset nainen",
    "Czech": "týden vždy odpověď psát koupit otázka práce zítra lidé žena",
    "Romanian": "săptămână răspuns scrie întrebare muncă mâine oameni femeie copil bani",
    "Hungarian": "mindig válasz írni kérdés munka holnap ember gyerek pénz",
    "Indonesian or Malay": "minggu selalu jawaban membeli pertanyaan kerja besok orang perempuan",
}


def foreign_language(texts: Iterable[str]) -> str:
    """Return the language in Latin letters that many texts are surely in, if it is not English.

    Empty if no language is found. A text is in a language if it has more of its function words
    than of English ones; words that are parts of names count beside others, or in a sentence. Few
    texts among English ones do not count.
    """
    foreign, english = _count_languages(texts)
    if 4 * foreign.total() < english or not foreign:
        return ""
    return foreign.most_common(1)[0][0]


def main_language(texts: Iterable[str]) -> str:
    """Return the language in Latin letters that most of the texts are in, as far as they show it.

    It is English if nothing else is shown.
    """
    foreign, english = _count_languages(texts)
    [(language, count)] = foreign.most_common(1) or [("", 0)]
    return language if count > english else "English"


def sample(texts: Iterable[str]) -> list[str]:
    """Return the beginnings of some texts: of a list from all of it, else of the first ones."""
    if isinstance(texts, Sequence):
        texts = texts[:: max(1, len(texts) // _TEXTS)]
    return [text[:_CHARACTERS] for text, _ in zip(texts, range(_TEXTS), strict=False)]


def _count_languages(texts: Iterable[str]) -> tuple[Counter[str], int]:
    """Return how many texts are surely in each language but English, and how many in English."""
    foreign = Counter[str]()
    english = 0
    for text in texts:
        words = {word.lower().replace("’", "'") for word in _WORD.findall(text)}
        words |= {part for word in words if "'" in word for part in word.split("'")}
        known = len(words & _ENGLISH)
        possible = {name for word in words for name in _LANGUAGES_WITH.get(word, ())}
        if not text.isascii():
            possible |= _LETTERS.keys()
        counts = {name: _evidence(words, name) for name in _WORDS if name in possible}
        language = max(counts, key=counts.__getitem__, default="")
        strong, weak = counts.get(language, (0, 0))
        count = strong + weak
        is_sentence = len(words) >= _SENTENCE and count > 1
        if count > known and ((strong and len(words) > 2) or (is_sentence and not known)):
            foreign[language] += 1
        elif known:
            english += 1
    return foreign, english


#: The languages besides English that the shipped ``mini-multi`` has learned.
LEARNED = (
    "German",
    "Spanish",
    "French",
    "Italian",
    "Dutch",
    "Polish",
    "Portuguese",
    "Russian",
    "Chinese",
    "Japanese",
)
#: Letters of scripts that one language in the world's texts uses most, and of other languages in
#: the same script.
_CYRILLIC = re.compile("[Ѐ-ӿ]")
_NOT_RUSSIAN = re.compile("[іїєґўјљњћџђѓќѕҐ-ӿ]", re.IGNORECASE)
_LONGEST_WORD = 40  #: letters
_LATIN = re.compile("[A-Za-zÀ-ÖØ-öø-ɏ]+")
_KANA = re.compile("[぀-ヿ]")
_HAN = re.compile("[㐀-鿿]")


def language_of_script(texts: Iterable[str]) -> str:
    """Return Russian, Chinese or Japanese if a fifth of the texts, or more, are in its script."""
    counts = Counter[str]()
    count = 0
    for text in texts:
        letters = sum(map(str.isalpha, text))
        cyrillic, kana, han = (len(pattern.findall(text)) for pattern in (_CYRILLIC, _KANA, _HAN))
        count += bool(letters)
        if 2 * (kana + han) > letters:
            counts["Japanese" if kana else "Chinese"] += 1
        elif 2 * cyrillic > letters and not _NOT_RUSSIAN.search(text):
            counts["Russian"] += 1
    if not counts or 5 * counts.total() < count:
        return ""
    # a Japanese text may have no kana
    language = counts.most_common(1)[0][0]
    return "Japanese" if counts["Japanese"] * 3 > counts["Chinese"] > 0 else language


def latin_words(text: str) -> list[str]:
    """Return the words of a text in Latin letters, without those that no language has."""
    return [word for word in _LATIN.findall(text) if len(word) <= _LONGEST_WORD]


def common_words(language: str) -> list[str]:
    """Return common words of a language."""
    return _COMMON[language].split()


def _evidence(words: set[str], language: str) -> tuple[int, int]:
    """Return how many words are of a language, and how many are parts of names, too."""
    sure = words & _SURE[language]
    letters = _LETTERS.get(language)
    if letters is not None:
        sure = sure | {word for word in words if letters.search(word)}
    weak = words & _PARTS_OF_NAMES[language]
    return len(sure), len(weak - sure)
