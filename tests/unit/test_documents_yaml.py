import pytest
import yaml

from shardwright.documents.yaml_text import dump_yaml, parse_yaml
from shardwright.errors import InvalidInput


def parse(text: str, max_values: int = 10_000) -> object:
    return parse_yaml(text, "a.yaml", max_values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40_000_000", 40_000_000),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("1.5", 1.5),
        ("1e5", 1e5),
        ("1.0e-05", 1e-5),
        (".5", 0.5),
        ("1_000.5", 1000.5),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("''", ""),
        ("'12'", "12"),
        ('"1\\n2"', "1\n2"),
        ("80 GB", "80 GB"),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("0x10", "0x10"),
        ("1.2.3", "1.2.3"),
        ("-", [None]),
        ("--", "--"),
        ("<<", "<<"),
        ("[1, [2]]", [1, [2]]),
        ("? a\n: 1\n", {"a": 1}),
        ("1: x", {"1": "x"}),
        ("no: x", {"no": "x"}),
        ("a: # nothing\nb: 1", {"a": None, "b": 1}),
    ],
)
def test_the_core_schema(text: str, value: object) -> None:
    result = parse(text)
    assert result == value
    assert type(result) is type(value)


def test_aliases() -> None:
    assert parse("a: &x {zipf: 1}\nb: *x\nc: [&y 5, *y]\n") == {"a": {"zipf": 1}, "b": {"zipf": 1}, "c": [5, 5]}
    assert parse("&k a: 1\nb: *k\n") == {"a": 1, "b": "a"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: is empty; name a file with content"),
        ("# only a comment", "a.yaml: is empty"),
        ("a: [1", "a.yaml: line 2, column 1: not YAML: did not find expected ',' or ']'"),
        ("a: 1\nb: 'x", "line 2, column 6: not YAML: found unexpected end of stream"),
        ("a: b: c", "line 1, column 5: not YAML: mapping values are not allowed in this context"),
        ("\ta: 1", "not YAML: found character that cannot start any token"),
        ("a: \x01", "not YAML: unacceptable character"),
        ("\x00", "not YAML: unacceptable character"),
        ('"\\ud800"', "not YAML"),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document begins; a file holds one"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' occurs twice in one mapping; keep one"),
        ("{a: 1, 'a': 2}", "the key 'a' occurs twice"),
        ("[1, 2]: 3", "a key of a mapping must be plain text"),
        ("a: &k x\n*k : 3", "a key of a mapping must be plain text"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed",
        ),
        ("!!str 5", "the tag 'tag:yaml.org,2002:str' is not allowed; remove it"),
        ("a: !own {b: 1}", "the tag '!own' is not allowed"),
        ("!!int a: 1", "the tag 'tag:yaml.org,2002:int' is not allowed"),
        ("a: *x", "the alias '*x' has no complete anchor '&x' before it"),
        ("a: &x [*x]", "the alias '*x' has no complete anchor '&x' before it"),
        (".nan", ".nan is not allowed; numbers must be finite"),
        ("-.inf", "-.inf is not allowed"),
        ("1e400", "the number 1e400 is too large; numbers must be finite"),
        ("9" * 401, "an integer has 401 digits, the most that is read is 400"),
        ("[" * 33, "nested more than 32 deep; flatten it"),
        ("- " * 10_000, "nested more than 32 deep"),
        ("{a: " * 100, "nested more than 32 deep"),
        ("[" + "1," * 10_000 + "]", "the document holds more than 10000 values, the most that is read; split the file"),
    ],
)
def test_invalid_yaml_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(text)
    assert str(error.value).startswith("a.yaml: ")
    assert message in str(error.value)


def test_without_the_compiled_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse("a: &x {zipf: 1e5, b: no}\nc: [*x, 40_000, '1']") == {
        "a": {"zipf": 1e5, "b": "no"},
        "c": [{"zipf": 1e5, "b": "no"}, 40_000, "1"],
    }
    for text in ("a: [1", "a: 1\na: 2", "!!python/name:os x", "[" * 10_000, "- " * 10_000, "a: \x01", "a: &x [*x]"):
        with pytest.raises(InvalidInput):
            parse(text)


def test_nesting_up_to_the_limit() -> None:
    parse("[" * 32 + "]" * 32)


def test_a_bomb_of_aliases() -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 20)]
    with pytest.raises(InvalidInput, match="more than 10000 values"):
        parse("\n".join(["a0: &a0 [x, x, x]", *levels]))


@pytest.mark.parametrize(
    "text",
    [
        "", "no", "yes", "null", "~", "12", "1e5", "1_0", ".5", "-1", ".nan", "=", "<<", "a: b", "# a", "80 GB", "- x", "'",
        '"', "{", "2001-01-01", "0x1f", "1:30", " a ", "a  b", "é\u2028", "😀", "!tag", "&a", "*a", "%", "@", "`", "x" * 300,
    ],
)  # fmt: skip
def test_texts_stay_texts(text: str) -> None:
    written = dump_yaml({"name": text, "list": [{"name": text}], text: 1})
    expected = {"name": text, "list": [{"name": text}], text: 1}
    assert parse(written) == expected
    assert yaml.safe_load(written) == expected  # other readers agree


@pytest.mark.parametrize("number", [0.0, 1.0, 1e-5, 1e17, 1.5e300, 5e-324, -0.1, 0.1 + 0.2, 450e9, 2**60])
def test_numbers_stay_exact(number: float) -> None:
    written = dump_yaml({"a": number})
    result = parse(written)
    assert result == {"a": number} == yaml.safe_load(written)
    assert "!!" not in written
