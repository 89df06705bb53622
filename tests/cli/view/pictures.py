# SPDX-License-Identifier: Apache-2.0
"""Keeps a picture of each view of `varve view`, light and dark, for people to look at.

pictures.py OUT NAME=STORE...    (scripts/view_pictures makes the stores and starts it)

OUT gets NAME_VIEW_light.png and NAME_VIEW_dark.png. It shows the newest step of the run that has the most
tensors.
"""

import pathlib
import sys

import harness
import view_browser
import view_case
from view_browser import link

PARENT_MISSING = "the newest step has no parent to compare with"


def views_of(store):
    runs = {}
    for step in harness.varve_json(store, "steps"):
        runs.setdefault(step["run"], []).append(step)
    steps = max(runs.values(), key=lambda steps: (steps[-1]["tensors"], len(steps)))
    newest = steps[-1]
    if len(steps) < 2:
        sys.exit(PARENT_MISSING)
    step = f"{newest['run']}@{newest['step']}"
    before = f"{newest['run']}@{steps[-2]['step']}"
    tensors = harness.varve_json(store, "ls", step)
    largest = max(tensors, key=lambda tensor: (tensor["logical_bytes"], len(tensor["shape"])))[
        "name"
    ]
    longest = max(runs, key=lambda run: len(runs[run]))
    return {
        "runs": link("runs"),
        "space": link("space", run=longest, **{"keep-last": 3}),
        "step": link("step", step=step),
        "tensor": link("tensor", step=step, name=largest, beside=before),
        "diff": link("diff", before=before, after=step),
        "health": "health",
    }


def take(browser, out, name, store):
    views = views_of(store)
    with view_case.View(store) as view:
        for scheme in ("light", "dark"):
            browser.color_scheme(scheme)
            for title, fragment in views.items():
                browser.open(view.url, fragment)
                if title == "health" and scheme == "light":  # the server remembers it
                    browser.driver.find_element("xpath", "//button[text()='Check now']").click()
                    browser.wait(
                        "!document.querySelector('button:disabled')", "no end of the check"
                    )
                path = out / f"{name}_{title}_{scheme}.png"
                browser.keep_picture(path)
                print(path, flush=True)


def main():
    if why_not := view_browser.why_not():
        sys.exit(f"{why_not} (scripts/setup --browser)")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with harness.clean_folder() as folder, view_browser.Browser(folder) as browser:
        for argument in sys.argv[2:]:
            name, store = argument.split("=", 1)
            take(browser, out, name, store)


if __name__ == "__main__":
    main()
