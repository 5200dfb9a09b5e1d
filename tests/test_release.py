"""The release script dates the changelog, sets the version and refuses what cannot be released."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.rooms import TOP


@pytest.fixture(scope="module")
def release() -> ModuleType:
    loader = SourceFileLoader("release", str(TOP / "scripts" / "release"))
    module = module_from_spec(spec_from_loader("release", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def test_unreleased_entries_get_the_version_and_the_date(release: ModuleType) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n- A fix.\n\n## [1.0.0] - 2026-01-01\n\n- First.\n"
    assert release.dated_changelog(text, "1.1.0", "2026-02-03") == (
        "# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2026-02-03\n\n- A fix.\n\n"
        "## [1.0.0] - 2026-01-01\n\n- First.\n"
    )


def test_entries_of_a_version_without_a_date_join_the_release(release: ModuleType) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n- A fix.\n\n## [1.1.0]\n\n- First.\n"
    assert release.dated_changelog(text, "1.1.0", "2026-02-03") == (
        "# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2026-02-03\n\n- A fix.\n\n- First.\n"
    )


def test_a_changelog_without_unreleased_entries_is_refused(release: ModuleType) -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n## [1.0.0] - 2026-01-01\n"
    with pytest.raises(SystemExit, match="nothing to release"):
        release.dated_changelog(text, "1.1.0", "2026-02-03")


def test_the_version_in_the_package_is_replaced(release: ModuleType) -> None:
    source = release.VERSION_FILE.read_text()
    assert '__version__ = "9.8.7rc6"\n' in release.versioned(source, "9.8.7rc6")


@pytest.mark.parametrize("version", ["3", "v3.0.0", "3.0.0-rc1", "3.0.0rc"])
def test_a_wrong_version_is_refused(release: ModuleType, version: str) -> None:
    with pytest.raises(SystemExit, match="is no version"):
        release.check(version)


def test_a_dry_run_changes_nothing(
    release: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## [Unreleased]\n\n- A fix.\n")
    source = release.VERSION_FILE.read_text()
    monkeypatch.setattr(release, "CHANGELOG", changelog)
    monkeypatch.setattr(sys, "argv", ["release", "9.8.7", "--dry-run"])
    release.main()
    shown = capsys.readouterr().out
    assert "## [9.8.7] - " in shown
    assert '__version__ = "9.8.7"' in shown
    assert changelog.read_text() == "# Changelog\n\n## [Unreleased]\n\n- A fix.\n"
    assert release.VERSION_FILE.read_text() == source
