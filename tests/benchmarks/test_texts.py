from benchmarks.main.texts import MESSAGE_CHARS, message, sentences_file


def test_messages_differ_from_their_first_words_on() -> None:
    assert len({message(number)[:20] for number in range(5000)}) == 5000


def test_messages_have_their_length() -> None:
    assert {len(message(number)) for number in range(100)} == {MESSAGE_CHARS}
    assert len(message(1, 13)) == 13


def test_messages_need_no_escapes_in_json() -> None:
    """wrk's Lua pastes them into its bodies as they are."""
    text = sentences_file().read_text(encoding="ascii")
    assert not set('"\\') & set(text)
