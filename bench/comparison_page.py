# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and plots of docs/comparison.md from the JSON of bench/compare_peers.py.

    bench/comparison_page.py build/comparison.json            writes them anew
    bench/comparison_page.py --check FILE.json                says whether they are those of the JSON
    bench/comparison_page.py --print FILE.json                prints the tables

What it writes lies between two comments, `<!-- made: NAME -->` and `<!-- end -->`. No number in it is typed
by hand. The page must have each of these parts. The part `sizes` has a section for each size of the JSON.
"""

import argparse
import json
import pathlib
import re
import sys

from comparison import bars, machine
from comparison.metrics import GROUPS, SIZE_TITLES, TITLES, text, with_spread
from comparison.reasons import reason

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWN = "varve"  # what a peer is measured against. "varve, uncompressed" is no peer
BETTER = 0.97  # of varve's number; a smaller difference is none
UNKNOWN = "not known"

MAPPED = (
    "*Memory, load* counts the pages of a file that a peer maps, though the system can take them back. "
    "safetensors and `torch.load(mmap=True)` map their files. It does not count what the system keeps in its "
    "cache of files that are read, as varve reads its own."
)


def lines_of(cells):
    return "| " + " | ".join(cells) + " |"


def table(header, rows):
    return "\n".join([lines_of(header), "|" + "---|" * len(header), *map(lines_of, rows)])


def machine_text(document):
    about = document["machine"]
    command = document["command"]
    return (
        f"{machine.words(about)} torch had {about['torch_threads']} threads. "
        f"The load was {about['load_before']} before and {about['load_after']} after. "
        + (f"The command was `{command}`." if command else "The command line was not kept.")
    )


def states_table(document):
    rows = [
        [
            name,
            f"{size['parameters'] / 1e6:.1f} M",
            str(size["tensors"]),
            text(size["bytes"], "bytes"),
            str(size["train_steps"]),
            str(size["rounds"]),
        ]
        for name, size in document["sizes"].items()
    ]
    made = table(["state", "parameters", "tensors", "bytes", "steps trained", "rounds"], rows)
    missing = [title for size, title in SIZE_TITLES.items() if size not in document["sizes"]]
    if missing:
        made += (
            f"\n\nThis run has **no numbers** of the model of {' and of that of '.join(missing)}."
        )
    return made


def subjects_table(document):
    rows = []
    for name, about in document["subjects"].items():
        versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
        cannot = ". ".join(about["cannot"].values())
        synced = "by itself" if about["syncs"] else "by the benchmark"
        rows.append([name, versions, about["how"], synced, cannot])
    rows += [
        [name, "not installed: " + ", ".join(lacking), "", "", ""]
        for name, lacking in document["not_installed"].items()
    ]
    return table(["", "versions", "how", "synced", "what it cannot"], rows)


def measured(group, results):
    """The metrics of a group that some subject has."""
    return [
        metric for metric in GROUPS[group] if any(metric.key in each for each in results.values())
    ]


def best(metric, results):
    found = [each[metric.key]["median"] for each in results.values() if metric.key in each]
    return min(found)


def cell(metric, subject, results, document):
    found = results[subject].get(metric.key)
    if found is None:
        waits = metric.key == "stall" and not subject.startswith(OWN)
        return "the whole save" if waits else "–"
    shown = with_spread(found, metric.unit)
    if found["median"] == best(metric, results):
        shown = f"**{shown}**"
    is_marked = metric.key in document["subjects"][subject]["cannot"]
    return shown + (" \\*" if is_marked else "")


def group_table(group, size, document):
    results = document["sizes"][size]["results"]
    metrics = measured(group, results)
    rows = [
        [subject, *(cell(metric, subject, results, document) for metric in metrics)]
        for subject in results
    ]
    return table(["", *(metric.title for metric in metrics)], rows)


def unsynced_table(size, document):
    results = document["sizes"][size]["results"]
    rows = [
        [
            subject,
            *(
                with_spread(results[subject][f"{metric.key}_call"], "s")
                for metric in GROUPS["saves"]
            ),
        ]
        for subject in results
        if not document["subjects"][subject]["syncs"]
    ]
    return table(["", *(metric.title for metric in GROUPS["saves"])], rows)


def ratio(metric, peer, results):
    """The peer's number over varve's, below 1 when it is better, or None."""
    own, other = (results[name].get(metric.key) for name in (OWN, peer))
    if own is None or other is None:
        return None
    if metric.unit == "share":  # of a step's time
        return (1 + other["median"]) / (1 + own["median"])
    if own["median"] <= 0 or other["median"] <= 0:
        return 0.0 if other["median"] < own["median"] else 1.0
    return other["median"] / own["median"]


def better_rows(document):
    """Where a peer's number is better than varve's: what, who and by how much, why."""
    sizes = document["sizes"]
    for group, metrics in GROUPS.items():
        for metric in metrics:
            by_reason = {}
            for peer in document["subjects"]:
                ratios = {
                    size: ratio(metric, peer, each["results"]) for size, each in sizes.items()
                }
                better = [
                    f"{size}: {text(sizes[size]['results'][peer][metric.key]['median'], metric.unit)}"
                    for size, each in ratios.items()
                    if each is not None and each < BETTER
                ]
                if better and not peer.startswith(OWN):
                    said = by_reason.setdefault(reason(metric.key, peer) or UNKNOWN, [])
                    said.append(f"{peer} ({', '.join(better)})")
            own = ", ".join(
                f"{size}: {text(each['results'][OWN][metric.key]['median'], metric.unit)}"
                for size, each in sizes.items()
                if metric.key in each["results"][OWN]
            )
            for why, who in by_reason.items():
                yield [f"{TITLES[group]}: {metric.title}", own, "; ".join(who), why]


def plot_name(group, size):
    return f"{group}-{size}.svg"


def memory_note(size, document):
    """How many samples the memory has. It may have fewer than there were rounds."""
    counts = {
        len(each[metric.key]["samples"])
        for each in document["sizes"][size]["results"].values()
        for metric in GROUPS["training"]
        if metric.key.startswith("memory_") and metric.key in each
    }
    if not counts:
        return ""
    return f" The memory was measured {'once' if counts == {1} else f'{min(counts)} times'} for each peer."


def section(size, document):
    """All of one size: a heading, and the plot and the table of each group."""
    said = [f"## {SIZE_TITLES.get(size, size)}"]
    for group in GROUPS:
        said += [
            f"![{TITLES[group].split(',')[0]}, {size}](comparison/{plot_name(group, size)})",
            group_table(group, size, document),
        ]
        if group == "saves":
            said += [
                "Until they return, for peers that do not sync:",
                unsynced_table(size, document),
            ]
    said[-1] += "\n\n" + MAPPED + memory_note(size, document)
    return "\n\n".join(said)


def parts(document):
    return {
        "machine": machine_text(document),
        "states": states_table(document),
        "subjects": subjects_table(document),
        "rounds": document["order"],
        "better": table(["", "varve", "better", "why"], list(better_rows(document))),
        "sizes": "\n\n".join(section(size, document) for size in document["sizes"]),
    }


def plots(document):
    for size, about in document["sizes"].items():
        results = about["results"]
        for group in GROUPS:
            panels = [
                (
                    metric.title,
                    {
                        name: (
                            each[metric.key]["median"],
                            each[metric.key]["least"],
                            each[metric.key]["most"],
                            text(each[metric.key]["median"], metric.unit),
                        )
                        for name, each in results.items()
                        if metric.key in each
                    },
                )
                for metric in measured(group, results)
            ]
            names = [name for name in results if any(name in panel for _, panel in panels)]
            yield plot_name(group, size), bars.chart(f"{TITLES[group]}, {size}", names, OWN, panels)


def filled(page, made):
    """The page with all of its parts written anew."""
    found = re.findall(r"<!-- made: (.*?) -->", page)
    if sorted(found) != sorted(made):
        sys.exit(f"comparison_page: the page has the parts {sorted(found)}, not {sorted(made)}")

    def part(match):
        name = match.group(1)
        return f"<!-- made: {name} -->\n{made[name]}\n<!-- end -->"

    return re.sub(r"<!-- made: (.*?) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def require_reasons(document):
    """Nobody should read a reason that is not true of a peer."""
    for what, _, who, why in better_rows(document):
        if why == UNKNOWN:
            sys.exit(
                f"comparison_page: {what}: why is it better with {who}? "
                "bench/comparison/reasons.py has no reason. Find it out, and add it."
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/comparison.md")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--print", action="store_true", help="print the parts")
    options = parser.parse_args()
    document = json.loads(options.json.read_text(encoding="utf-8"))
    made = parts(document)
    if options.print:
        for name, each in made.items():
            print(f"## {name}\n\n{each}\n")
        return 0
    require_reasons(document)
    folder = options.page.with_suffix("")
    files = {folder / name: svg for name, svg in plots(document)}
    unused = sorted(set(folder.glob("*.svg")) - set(files))
    files[options.page] = filled(options.page.read_text(encoding="utf-8"), made)
    old = [
        path
        for path, wanted in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted
    ]
    if options.check:
        for path in old:
            print(f"{path} is not what {options.json} says")
        for path in unused:
            print(f"{path} is of a size that {options.json} does not have")
        return 1 if old or unused else 0
    folder.mkdir(exist_ok=True)
    for path in old:
        path.write_text(files[path], encoding="utf-8")
        print(f"wrote {path}")
    for path in unused:
        path.unlink()
        print(f"removed {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
