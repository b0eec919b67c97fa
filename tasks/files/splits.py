"""Which files of a folder are one split of a dataset, as the package datasets finds them.

In: a folder, and the names of a configuration and of a split. Out: the files of that split, and what is left out.
A folder of `save_to_disk` lists its files. A README names them by configuration (`configs`). Else files and folders
that are named like a split (train, validation, test, and other words for them) are that split.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from posixpath import normpath
from typing import Any, NamedTuple

from apprentice.tasks.files.forms import READERS, form_of
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop

TRAIN, EVERY = "train", "all"
"""The split that is read by default, and the word for all of them; both as in datasets."""
ALL, KEPT = "rollouts.jsonl", "kept.jsonl"
"""The files of a folder of this project."""
PATTERNS = ("*.jsonl", "data/*.jsonl", "*.parquet", "data/*.parquet")
OTHERS = ("*.eval", "*.json", "**/trajectory.json", "**/*.jsonl", "**/*.parquet")
MORE = ("data/*.json", "**/*.json", "*.arrow", "**/*.arrow", "*.json*.gz", "**/*.json*.gz")
"""The first that matches is read: a folder of ours, or the layout that `push_to_hub` of the package datasets writes;
then Inspect's logs, JSON files such as exported trajectories, Harbor's folders of trials, and other layouts."""
SHARD = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
"""datasets.data_files.SPLIT_PATTERN_SHARDED, with the split's name."""
TRIAL, JOB = "trajectory.json", "result.json"
LOG = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d")
"""Files of Harbor and of Inspect, which are no splits, whatever a task is called. A job of Harbor has no row."""
SAVED, SAVED_AS_SEVERAL = "state.json", "dataset_dict.json"
"""Files that `save_to_disk` writes."""
Splits = dict[str, list[Path]]


class SplitFiles(NamedTuple):
    """What is read of a dataset."""

    files: list[Path]
    said: str = ""
    """Which split that is and what is left out, for people; empty for a dataset without splits."""


def part_of(
    path: str,
    folder: Path,
    split: str = TRAIN,
    config: str | None = None,
    patterns: Sequence[str] = (*PATTERNS, *OTHERS, *MORE),
) -> SplitFiles:
    """The files of a split. Raises Stop with the choices if a folder does not have it, or its configuration.

    Args:
        path: The dataset, as a recipe names it.
        folder: Where it is.
        split: A split, or `all`.
        config: A configuration of the README. Default: the one that it marks as the default, or the only one.
        patterns: Where rows are looked for in a folder without splits.
    """
    configs = {} if config is None and any((folder / each).is_file() for each in (ALL, KEPT)) else _configs(folder)
    if saved := _saved(path, folder):
        whole, splits = saved
    elif configs:
        config = _config(path, configs, config)
        others = ", ".join(name for name in configs if name != config)
        splits = _configured(path, folder, patterns, config, configs[config])
        left = [f"the configurations {others}"] if others else []
        return _chosen(path, splits, split, left, f"{config}, " if others else "")
    else:
        whole = _whole(folder, patterns)
        splits = _named(folder, whole)
    if config is not None:
        raise Stop(f"{path} has no configurations, so none is called {config}.", "Remove collect.dataset.config.")
    if not splits:
        without_splits(path, split)
        return SplitFiles(whole)
    read = {file for files in splits.values() for file in files}
    loose = [file for file in whole if file not in read]
    return _chosen(path, splits, split, [f"in no split {_listing(loose)}"] if loose else [])


def without_splits(path: str, split: str, config: str | None = None) -> None:
    """Raises Stop if a split or a configuration is named of what has none."""
    if split not in (TRAIN, EVERY) or config is not None:
        raise Stop(
            f"{path} has no splits, so none is called {config or split}.",
            "Remove --split and --config, or collect.dataset.split and .config from the recipe.",
        )


def _chosen(path: str, splits: Splits, split: str, left: list[str], config: str = "") -> SplitFiles:
    single = split == TRAIN and len(splits) == 1 and not any(map(_examines, splits))
    wanted = list(splits) if single or (split == EVERY and EVERY not in splits) else [split]
    if not set(wanted) <= splits.keys():
        cut = " Parts of a split cannot be named." if re.search(r"[\[+:%]", split) else ""
        also = f" Not read: {', '.join(left)}." if left else ""
        raise Stop(
            f"{path} has no split {split}.{cut} It has {', '.join(splits)}.{also}",
            f"Name one of them, or {EVERY}: --split {next(iter(splits))}, or collect.dataset.split in the recipe; or "
            "name a single file.",
        )
    left = [*(name for name in splits if name not in wanted), *left]
    said = f"{config}{'split' if len(wanted) == 1 else 'splits'} {', '.join(wanted)}"
    files = sorted({file for name in wanted for file in splits[name]})
    notes = [said] if left or wanted != [TRAIN] else []
    notes += [f"not read: {', '.join(left)}"] if left else []
    return SplitFiles(files, f" ({'; '.join(notes)})" if notes else "")


def _examines(split: str) -> bool:
    """Whether a split is one to measure with, by its name."""
    from datasets.data_files import SPLIT_KEYWORDS

    words = {word for kind, each in SPLIT_KEYWORDS.items() if kind != TRAIN for word in each}
    return bool(words & set(re.split(r"[-._ 0-9]", split)))


def _listing(files: Sequence[Path], most: int = 3) -> str:
    more = f" and {len(files) - most} more" if len(files) > most else ""
    return ", ".join(file.name for file in files[:most]) + more


def _whole(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """What is read of a folder without splits."""
    passed_over = _about_the_data() | ({JOB} if any(folder.glob(f"*/**/{TRIAL}")) else set())
    for pattern in patterns:
        if found := [file for file in sorted(folder.glob(pattern)) if file.name not in passed_over]:
            return found
    return []


def _about_the_data() -> set[str]:
    from datasets.data_files import FILES_TO_IGNORE

    return {*FILES_TO_IGNORE, SAVED}


def _saved(path: str, folder: Path) -> tuple[list[Path], Splits] | None:
    """The files of a folder of `save_to_disk`: those of one dataset, or by their split."""
    try:
        if (folder / SAVED_AS_SEVERAL).is_file():
            named = json.loads((folder / SAVED_AS_SEVERAL).read_text())["splits"]
            return [], {split: _data_files(folder / split) for split in named}
        if (folder / SAVED).is_file() and (folder / "dataset_info.json").is_file():
            return _data_files(folder), {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(f"{path} was not wholly written by save_to_disk: {error}.", "Save it again.") from None
    return None


def _data_files(folder: Path) -> list[Path]:
    files = [folder / each["filename"] for each in json.loads((folder / SAVED).read_text())["_data_files"]]
    for file in files:
        file.stat()
    return files


def _configs(folder: Path) -> dict[str, dict[str, Any]]:
    """The configurations that a README or .huggingface.yaml names. Raises Stop."""
    import yaml
    from huggingface_hub import DatasetCardData, metadata_load

    readme, other = folder / "README.md", folder / ".huggingface.yaml"
    try:
        given = (metadata_load(readme) if readme.is_file() else None) or {}
        given |= (yaml.safe_load(other.read_text()) if other.is_file() else None) or {}
    except (ValueError, TypeError, yaml.YAMLError):
        announce.warn(f"{readme} is not read, because its head is not YAML: splits are known by the names of files.")
        return {}
    if not given.get("configs"):
        return {}
    from datasets.utils.metadata import MetadataConfigs

    try:
        return dict(MetadataConfigs.from_dataset_card_data(DatasetCardData(configs=given["configs"])))
    except (ValueError, TypeError, AttributeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise Stop(
            f"{readme} does not name its configurations as the package datasets reads them: {cause}.",
            "Correct its `configs`, or name a single file.",
        ) from None


def _config(path: str, configs: dict[str, dict[str, Any]], wanted: str | None) -> str:
    """The configuration that is wanted, or the default one. Raises Stop with the choices."""
    default = [name for name, given in configs.items() if name == "default" or given.get("default")]
    named = [wanted] if wanted is not None else default if len(configs) > 1 else list(configs)
    if len(named) == 1 and named[0] in configs:
        return named[0]
    what = "no configuration " + wanted if wanted else f"{len(configs)} configurations, and no default among them"
    raise Stop(
        f"{path} has {what}. It has {', '.join(configs)}.",
        f"Name one of them: --config {next(iter(configs))}, or collect.dataset.config in the recipe.",
    )


def _configured(path: str, folder: Path, layouts: Sequence[str], config: str, given: dict[str, Any]) -> Splits:
    """The splits of a configuration of the README. Raises Stop for one without files."""
    from datasets.data_files import sanitize_patterns

    inside = folder / str(given.get("data_dir") or "")
    if (patterns := given.get("data_files")) is None:
        whole = _whole(inside, layouts)
        return _named(inside, whole) or ({TRAIN: whole} if whole else _without_files(path, config, [TRAIN]))
    names = _names(inside)
    found = {split: _matching(names, each) for split, each in sanitize_patterns(patterns).items()}
    empty = [split for split, files in found.items() if not files]
    return found if not empty else _without_files(path, config, empty)


def _without_files(path: str, config: str, splits: list[str]) -> Splits:
    raise Stop(
        f"{path} has no file in {', '.join(READERS)} for split {', '.join(splits)} of its configuration {config}.",
        "Correct the `configs` of its README, choose another one with --config, or name a single file.",
    )


def _named(folder: Path, whole: list[Path]) -> Splits:
    """The splits by the names of files and folders; empty where no name is that of one."""
    form = form_of(whole[0]) if whole else None
    called = {file.name for file in whole}
    if form in (None, ".eval") or called <= {ALL, KEPT} or called == {TRIAL} or all(map(LOG.match, called)):
        return {}
    names = _names(folder)
    splits = _by_name({name: file for name, file in names.items() if form_of(file) == form})
    if TRAIN not in splits and not {file for files in splits.values() for file in files} & set(whole):
        return {TRAIN: whole, **splits} if splits else {}  # what has no split's name lies above them
    if TRAIN not in splits and TRAIN in (of_each_form := _by_name(names)):
        return {split: _of_one_form(files) for split, files in of_each_form.items()}
    if splits.keys() == {TRAIN} and (above := [file for file in splits[TRAIN] if file in whole]):
        return {TRAIN: above}
    return splits


def _by_name(names: dict[str, Path]) -> Splits:
    """The splits of the first layout of datasets that fits: shards in a folder, folders, files; here in any case."""
    from datasets.data_files import DEFAULT_PATTERNS_SPLIT_IN_DIR_NAME, DEFAULT_PATTERNS_SPLIT_IN_FILENAME

    sharded: Splits = {}
    for name, file in names.items():
        if shard := SHARD.fullmatch(name):
            sharded.setdefault(shard[1], []).append(file)
    in_folders, in_names = (
        {str(split): files for split, each in patterns.items() if (files := _matching(names, each, re.IGNORECASE))}
        for patterns in (DEFAULT_PATTERNS_SPLIT_IN_DIR_NAME, DEFAULT_PATTERNS_SPLIT_IN_FILENAME)
    )
    usual = {split: sharded[split] for split in (TRAIN, "validation", "test") if split in sharded}
    return usual | sharded or in_folders or in_names


def _of_one_form(files: list[Path]) -> list[Path]:
    first = min((form_of(file) or "" for file in files), key=list(READERS).index)
    return [file for file in files if form_of(file) == first]


def _names(folder: Path) -> dict[str, Path]:
    """The files that can be read, by their place in the folder, but those that datasets passes over."""
    found = {}
    for file in sorted(folder.rglob("*")):
        *folders, name = file.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in (*folders, name)) or any(
            each.startswith("__") for each in folders
        )
        if form_of(file) and not hidden and name not in _about_the_data() and file.is_file():
            found["/".join((*folders, name))] = file
    return found


def _matching(names: dict[str, Path], patterns: Iterable[str], flags: int = 0) -> list[Path]:
    """The files whose place matches one of the patterns, which are those of fsspec, as datasets has them."""
    from fsspec.utils import glob_translate

    wanted = []
    for each in patterns:
        try:
            wanted.append(re.compile(glob_translate(normpath(each)), flags))
        except ValueError as error:
            raise Stop(f"The pattern {each} of a README is none: {error}.", "Correct its `configs`.") from None
    return [file for name, file in names.items() if any(each.match(name) for each in wanted)]
