"""A small published document: what is refused, and two transcriptions held together."""

import json
from decimal import Decimal

import pytest
from transcriptions import numbers_in, transcriptions, words

from labkit.claims.published import TAIL, published
from labkit.errors import DatasetError

KEYS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")
CELLS = [
    ("low", "A; range", "-24", "%"),
    ("high", "A; range", "32", "%"),
    ("low", "B; range", "0", "%"),
    ("high", "B; range", "0", "%"),
    ("std", "C; time", "0.070", "us"),
    ("mean", "C; time", "1.5", "us"),
]


@pytest.fixture
def small(tmp_path):
    """A small document: two ranges, a mean with its spread, and a value from the text."""
    rows = [f"bare,Table 1,{label},time,{s},{v},{u}," for s, label, v, u in CELLS]
    rows.append("bare,section 2,bound,time,max,9,us,10")
    (tmp_path / "small.csv").write_text("\n".join([",".join(("placement", *TAIL)), *rows, ""]))
    types = {"value": "number", "n": "integer"}
    fields = [{"name": c, "type": types.get(c, "string")} for c in ("placement", *TAIL)]
    (tmp_path / "small.schema.json").write_text(json.dumps({"name": "small", "fields": fields}))
    (tmp_path / "small.words.csv").write_text("item,row,column,text\nTable 2,Kernel,,4.15\n")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "small.csv").write_text(SECOND)
    return tmp_path


SECOND = """item,label,text
Table 1,A; range,−24 % to 32 %
Table 1,B; range,0 %
Table 1,C;  time,<b>1.50</b> [±0.07]
Table 2,Kernel,4.15
"""


@pytest.mark.parametrize("text", ["no json", "{}", '{"fields": [{"name": "a", "type": "date"}]}'])
def test_a_broken_schema_is_refused(small, text):
    (small / "small.schema.json").write_text(text)
    with pytest.raises(DatasetError, match=r"not a table schema|last columns of small"):
        published("small", small)


def test_numbers_that_may_be_empty(small):
    table = published("small", small)
    assert table["n"].isna().sum() == 6 and table["n"].dtype == "Int64"
    assert table["n"].iloc[-1] == 10
    (small / "small.csv").write_text((small / "small.csv").read_text().replace(",9,us", ",,us"))
    assert published("small", small)["value"].isna().sum() == 1


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", "1;5"])
def test_numbers_are_finite(small, value):
    (small / "small.csv").write_text((small / "small.csv").read_text().replace("1.5", value))
    with pytest.raises(DatasetError, match=r"a value of small\.csv is not of its type"):
        published("small", small)


def test_the_columns_end_as_agreed(small):
    (small / "small.csv").write_text("item,placement\n")
    fields = [{"name": name, "type": "string"} for name in ("item", "placement")]
    (small / "small.schema.json").write_text(json.dumps({"fields": fields}))
    with pytest.raises(DatasetError, match=r"small\.schema\.json are not item, label"):
        published("small", small)


def test_tables_of_text(small):
    assert words("small", small).to_dict("records") == [
        {"item": "Table 2", "row": "Kernel", "column": "", "text": "4.15"}
    ]
    (small / "small.words.csv").unlink()
    assert words("small", small).empty
    with pytest.raises(DatasetError, match="no published document 'big'"):
        words("big", small)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("item,text\nTable 1,x\n", "other columns"),
        ("item,row,column,text\nT,a,b,c,d\n", "too long"),
        ("item,row,column,text\nT,a,b,c\nT,a,c,d,e\n", "cannot be read"),
        ("", "cannot be read"),
        ('item,row\n"', "cannot be read"),
    ],
)
def test_broken_tables_of_text_are_refused(small, text, said):
    (small / "small.words.csv").write_text(text)
    with pytest.raises(DatasetError, match=said):
        words("small", small)


@pytest.mark.parametrize("key", KEYS)
def test_the_second_transcription_is_the_same(key):
    differences = transcriptions(key)
    assert differences.empty, differences.to_string()


def test_transcriptions_agree(small):
    assert transcriptions("small", small).empty


@pytest.mark.parametrize(
    ("old", "new", "first", "second"),
    [
        ("−24 %", "24 %", "-24, 32", "24 % to 32 %"),
        ("0 %\n", "1 %\n", "0, 0", "1 %"),
        ("1.50</b> [±0.07]", "0.07</b> [±1.5]", "1.5, 0.070", "<b>0.07</b> [±1.5]"),
        ("4.15", "4.51", "4.15", "4.51"),
        ("Table 2,Kernel,4.15\n", "", "4.15", ""),
        ("Table 1,B; range,0 %\n", "", "0, 0", ""),
        ("Table 2", "Table 3", "4.15", ""),
        ("4.15\n", "4.15\nTable 1,D; time,7\n", "", "7"),
        ("0 %\n", "0 % [±0] 0\n", "0, 0", "0 % [±0] 0"),
    ],
)
def test_transcriptions_differ(small, old, new, first, second):
    assert old in SECOND
    (small / "second" / "small.csv").write_text(SECOND.replace(old, new))
    found = transcriptions("small", small)
    assert found[["first", "second"]].to_records(index=False).tolist()[0] == (first, second)
    assert len(found) == (2 if new == "Table 3" else 1)


def test_a_label_that_stands_twice_is_compared_in_order(small):
    again = "bare,Table 1,E; time,time,{},{},us,\n"
    with (small / "small.csv").open("a") as table:
        table.write(again.format("min", 3) + again.format("max", 4))
    second = small / "second" / "small.csv"
    second.write_text(SECOND + "Table 1,E; time,3\nTable 1,E; time,4\n")
    assert transcriptions("small", small).empty
    second.write_text(SECOND + "Table 1,E; time,4\nTable 1,E; time,3\n")
    assert len(transcriptions("small", small)) == 1


def test_a_missing_second_transcription_is_an_error(small):
    (small / "second" / "small.csv").unlink()
    with pytest.raises(DatasetError, match=r"small.csv cannot be read"):
        transcriptions("small", small)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("13.36 [±0.07]", ["13.36", "0.07"]),
        ("26 % to 67 %", ["26", "67"]),
        ("-9 % to -5 %", ["-9", "-5"]),
        ("26–67", ["26", "67"]),
        ("1,000,000", ["1000000"]),
        ("L2 on eth0, 1.5e3", ["1500"]),
        (".5", ["0.5"]),
        ("S+ B", []),
        ("+5 %", ["5"]),
        ("none", []),
    ],
)
def test_numbers_of_a_printed_cell(text, numbers):
    assert numbers_in(text) == [Decimal(number) for number in numbers]
