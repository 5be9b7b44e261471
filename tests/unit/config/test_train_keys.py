from tests.unit.config.train_keys import PAGE, page


def test_the_page_has_every_key_with_its_values_and_meaning() -> None:
    assert PAGE.read_text() == page(), "python -m tests.unit.config.train_keys"
