import pytest

from shardwright.documents.json_text import dump_json, parse_json
from shardwright.errors import InvalidInput


def parse(text: str) -> object:
    return parse_json(text, "a.json", 1000)


def test_values() -> None:
    assert parse('{"a": [1, 2.5, null, true, "x", {"b": {}}]}') == {"a": [1, 2.5, None, True, "x", {"b": {}}]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.json: line 1, column 1: not JSON: Expecting value"),
        ('{"a": 1', "line 1, column 8: not JSON: Expecting ',' delimiter"),
        ('{"a": 1} x', "not JSON: Extra data"),
        ("{'a': 1}", "not JSON: Expecting property name"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice in one mapping; keep one"),
        ('[{"a": 1, "a": 1}]', "the key 'a' occurs twice"),
        ("NaN", "NaN is not allowed; numbers must be finite"),
        ("[-Infinity]", "-Infinity is not allowed"),
        ("1e400", "the number 1e400 is too large; numbers must be finite"),
        ("9" * 10_000, "an integer has thousands of digits"),
        ("[" * 900, "not JSON: Expecting value"),
        ("[" + "[]," * 1000 + "1]", "holds more than 1000 values, the most that is read; split the file"),
    ],
)
def test_invalid_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(text)
    assert str(error.value).startswith("a.json: ")
    assert message in str(error.value)


def test_deep_nesting() -> None:
    with pytest.raises(InvalidInput, match="nested too deeply"):
        parse_json("[" * 10**6, "a.json", 10**7)
    with pytest.raises(InvalidInput, match="nested too deeply"):
        parse_json('{"a":' * 10**6, "a.json", 10**7)


def test_text_is_written_as_it_is() -> None:
    assert dump_json({"a": "東京"}) == '{\n  "a": "東京"\n}\n'
