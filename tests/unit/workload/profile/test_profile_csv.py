import gzip

import pytest

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs


def named(result):
    return {table.name: table for table in result.tables()}


def test_scalars_text_and_what_is_left_out(text):
    path = text("a.csv", "user,country,price,day,label\n1,de,0.5,2024-01-01,true\n2,fr,1.5,2024-01-02,false\n1,de,,,\n")
    result = profile_logs(path)
    tables = named(result)
    assert list(tables) == ["user", "country"]
    assert (tables["user"].rows, tables["country"].rows) == (2, 2)
    assert set(result.left_out) == {"price", "day", "label"}


@pytest.mark.parametrize("field", ["1 2 3", "1|2|3", "1;2;3", '"1,2,3"', '"[1, 2, 3]"', "[1 2 3]"])
def test_lists_of_integers_are_recognised(text, field):
    tables = named(profile_logs(text("a.csv", f"user,items\n1,{field}\n2,3\n3,\n4,[]\n")))
    assert (tables["items"].rows, tables["items"].pooling) == (3, 1.0)


def test_lists_of_text_need_a_separator(text):
    path = text("a.csv", "user,genres\n1,Action|Drama\n2,Drama\n")
    assert named(profile_logs(path))["genres"].pooling == 1
    genres = named(profile_logs(path, list_separator="|"))["genres"]
    assert (genres.rows, genres.pooling) == (2, 1.5)


def test_tabs_and_compression(text):
    assert named(profile_logs(text("a.tsv", "user\titem\n1\t2\n")))["item"].rows == 1
    assert named(profile_logs(text("b.csv.gz", gzip.compress(b"user,item\n1,2\n"))))["item"].rows == 1


@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_columns_are_separated_by_what_the_header_shows(text, mark, name):
    lists = "1 2 3" if mark == "," else "1,2,3"
    content = f'user;items;"a,b"\n7;{lists};1\n8;4;2\n'.replace(";", mark).encode()
    tables = named(profile_logs(text(name, gzip.compress(content) if name.endswith("gz") else content)))
    assert [table.rows for table in tables.values()] == [2, 4, 2]
    assert (tables["user"].pooling, tables["items"].pooling) == (1.0, 2.0)


def test_one_column_of_lists_needs_no_delimiter(text):
    tables = named(profile_logs(text("a.csv", "items\n1;2;3\n4\n")))
    assert (tables["items"].rows, tables["items"].pooling) == (4, 2.0)
    tables = named(profile_logs(text("b.csv", "user,genre|tag\n1,2\n2,2|3\n")))
    assert list(tables) == ["user", "genre|tag"]


def test_a_decimal_comma_is_no_list_of_two_ids(text):
    result = profile_logs(text("a.csv", "user;price;items\n1;0,50;1,2\n2;3;1,2,3\n"))
    assert list(named(result)) == ["user", "items"]
    assert result.left_out["price"].startswith("double")
    lists = profile_logs(text("b.csv", "user;items\n1;1,2\n2;3\n"), list_separator=",")
    assert named(lists)["items"].pooling == 1.5


def test_empty_fields_are_no_lookups(text):
    tables = named(profile_logs(text("a.csv", "user,country\n1,\n,de\n3,null\n4,NaN\n")))
    assert (tables["user"].pooling, tables["country"].pooling) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Empty CSV file"),
        ("user,item\n", "the log is empty: columns user, item have no value"),
        ("user,item\n1,2\n1\n", "Row #3: Expected 2 columns, got 1"),
        ("user,item\n1,2,3\n", "Row #2: Expected 2 columns, got 3"),
        ("1,2\n3,4\n", "the first line is '1,2'; the first line of a CSV file must name its columns"),
        ("user,user\n1,2\n", "column 'user' occurs twice"),
        ("user;price,EUR;item\n1;0,50;3\n", "may be separated by commas and semicolons"),
        ("user;item|kind\n1;2|3\n", "may be separated by semicolons and bars"),
        ("user;item\n1\n", "Row #2: Expected 2 columns, got 1"),
        ("user,\n1,2\n", "column 2 is named '', must be printable text"),
        ("user,item\n1,-2\n", "column 'item': id -2 is negative"),
        ("price\n0.5\n", r"no column holds embedding ids .*; its columns: price \(double"),
        ("user\n" + "7" * 9_000_000 + "\n", "straddling object"),
    ],
)
def test_bad_files(text, content, message):
    with pytest.raises(InvalidInput, match=rf"a\.csv: .*{message}"):
        profile_logs(text("a.csv", content))


def test_a_value_of_another_type_far_in_the_file(text):
    with pytest.raises(InvalidInput, match=r"a\.csv: In CSV column 'item': .*invalid value 'x'"):
        profile_logs(text("a.csv", "user,item\n" + "1234567,7654321\n" * 300_000 + "1,x\n"), columns=["item"])


def test_a_list_that_ends_the_lists(text):
    content = "user,items\n" + "1234567,1 2 3\n" * 400_000 + "1,1 two 3\n"
    with pytest.raises(InvalidInput, match=r"a\.csv: column 'items' begins with lists of integers, and later"):
        profile_logs(text("a.csv", content))
