"""The code of the other pages of the documentation runs as shown."""

from pathlib import Path

import pytest

from tests.pages import SERVER_PAGES, follow


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("page", SERVER_PAGES)
def test_the_examples_of_a_page_work_as_shown(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)
