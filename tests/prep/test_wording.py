from fracdna_prep.wording import counted, listed, with_rest


def test_nouns_follow_their_number():
    """One has no s, none has one, and thousands are set apart."""
    assert [counted(n, "row") for n in (0, 1, 2, 1_234)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,234 rows",
    ]


def test_cut_lists_say_how_much_is_missing():
    """A list that is shown whole has no such end."""
    assert listed([]) == "none"
    assert listed("abc", shown=3) == "a, b, c"
    assert listed((str(i) for i in range(1_500)), shown=2) == "0, 1 and 1,498 more"
    assert with_rest(["a", "b"], 2) == ["a", "b"]
    assert with_rest(["a", "b"], 1_002) == ["a", "b", "... and 1,000 more"]
