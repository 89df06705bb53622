# SPDX-License-Identifier: Apache-2.0
"""`varve view` in a real browser: each view opens by its link, is usable by all, and runs no name.

Needs Debian's chromium and chromium-driver, and the packages of tests/support/browser_requirements.txt
(`scripts/setup --browser`). Pictures of all views are kept in build/release/view_pictures.
"""

import contextlib
import csv
import functools
import http.server
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import threading
import unittest
from unittest import mock
from xml.etree import ElementTree

import harness
import safetensors_bytes
import view_browser
import view_case
from view_browser import link

WHY_NOT = view_browser.why_not()
if WHY_NOT:
    print(f"skipped: {WHY_NOT} (scripts/setup --browser installs what is needed)")
    sys.exit(harness.SKIPPED)

import axe_playwright_python  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

A4 = (b"595", b"841")  # in points
ON_PAPER, SAVED_FILES, TEXTS_OF_SVG = (
    pathlib.Path(__file__).with_name(name).read_text("utf-8")
    for name in ("on_paper.js", "saved_files.js", "texts_of_svg.js")
)
AXE = pathlib.Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text("utf-8")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def places(topology):
    """Of each rank what its box says, as Megatron's RankGenerator has it, and independent of the page.

    Neighbours differ in the first kind of the order. Expert parallelism lies within the data parallel ranks,
    so it has no part in the grid of the others. Experts have their own grid, with a smaller dp and no cp.
    """

    def grid(degrees):
        found = [{}]
        for kind in reversed(topology["rank_order"].split("-")):
            found = [
                place | {kind: number} for place in found for number in range(degrees.get(kind, 1))
            ]
        return found

    degrees = {kind: topology[kind] for kind in ("tp", "cp", "dp", "pp")}
    experts = topology["dp"] * topology["cp"] // topology["ep"]
    of_experts = {
        "tp": topology["tp"],
        "ep": topology["ep"],
        "dp": experts,
        "pp": topology["pp"],
    }
    shown = [kind for kind in topology["rank_order"].split("-") if topology[kind] > 1]
    return [
        " ".join(f"{kind} {(place | {'ep': other['ep']})[kind]}" for kind in shown)
        for place, other in zip(grid(degrees), grid(of_experts), strict=True)
    ]


class BrowserTest(unittest.TestCase):
    num_judged = 0  # views that axe has looked at

    @classmethod
    def tearDownClass(cls):
        print(f"axe has judged {cls.num_judged} views", file=sys.stderr)

    @classmethod
    def setUpClass(cls):
        cls.resources = contextlib.ExitStack()
        cls.addClassCleanup(cls.resources.close)
        cls.folder = cls.resources.enter_context(harness.clean_folder())
        cls.store = cls.folder / "store"
        cls.hostile = cls.folder / "hostile"
        cls.group = cls.folder / "group"
        view_case.train(cls.folder, cls.store)
        view_case.hostile_store(cls.folder, cls.hostile)
        for step in (1, 2):
            harness.run("group_saver", cls.group, step, 2, 2, *["columns:13"] * (step - 1))
        cls.views = {
            path: cls.resources.enter_context(view_case.View(path))
            for path in (cls.store, cls.hostile, cls.group)
        }
        cls.chromium = cls.resources.enter_context(view_browser.Browser(cls.folder))
        cls.browser = cls.chromium.driver
        cls.pictures = view_case.kept_folder("view_pictures")

    def tearDown(self):
        problems = [entry for entry in self.browser.get_log("browser") if entry["level"] != "INFO"]
        self.assertEqual(problems, [])

    def wait(self, condition, what):
        self.chromium.wait(condition, what)

    def wait_until_shown(self):
        self.chromium.wait_until_shown()

    def open(self, fragment, store=None):
        return self.chromium.open(self.views[store or self.store].url, fragment)

    def color_scheme(self, scheme):
        self.chromium.color_scheme(scheme)

    def keep_picture(self, name):
        width = self.chromium.keep_picture(self.pictures / f"{name}.png")
        self.assertLessEqual(width, view_browser.WIDTH, "the page is wider than its window")

    def faults_of_axe(self):
        type(self).num_judged += 1
        self.browser.execute_script(AXE)
        found = self.browser.execute_async_script(
            "axe.run(document).then(arguments[0], error => arguments[0]({violations: [String(error)]}))"
        )
        return [
            (fault["id"], [node["html"][:200] + node["failureSummary"] for node in fault["nodes"]])
            if isinstance(fault, dict)
            else fault
            for fault in found["violations"]
        ]

    def views_of_the_store(self):
        weight = "model.layers.1.mlp.weight"
        return {
            "runs": link("runs", metric="loss"),
            "space": link("space", run="main", **{"keep-last": 1, "keep-best": "loss:1"}),
            "step": link("step", step="main@40"),
            "tensor": link("tensor", step="main@40", name=weight, beside="main@10"),
            "diff": link("diff", before="main@30", after="main@40"),
            "health": "health",
        }

    def test_every_view_is_clean_in_light_and_dark(self):
        for scheme in ("light", "dark"):
            self.color_scheme(scheme)
            for name, fragment in self.views_of_the_store().items():
                with self.subTest(scheme=scheme, view=name):
                    self.open(fragment)
                    self.assertEqual(self.browser.find_elements(By.CSS_SELECTOR, ".error"), [])
                    self.assertEqual(self.faults_of_axe(), [])
                    self.keep_picture(f"{name}_{scheme}")
        self.color_scheme("")

    def test_a_group_of_ranks(self):
        text = self.open(link("step", step="main@2"), self.group)
        self.assertIn("What each rank of main@2 holds", text)
        self.assertEqual(self.faults_of_axe(), [])
        self.keep_picture("group_step")
        text = self.open(link("tensor", step="main@2", name="columns"), self.group)
        self.assertIn("Shards of columns at main@2", text)
        self.keep_picture("group_tensor")
        self.assertIn("epoch", self.open("health", self.group))
        self.assertEqual(self.faults_of_axe(), [])

    def test_views_show_what_the_command_says(self):
        text = self.open(link("runs", metric="accuracy", best="highest"))
        for step in harness.varve_json(self.store, "steps"):
            self.assertIn(f"{step['run']}@{step['step']}", text)
        best = harness.varve_json(self.store, "show", "best:accuracy:max")["step"]
        self.assertRegex(text, rf"main {best} 0\.3")
        text = self.open(link("step", step="best:loss"))
        self.assertIn("14 tensors", text)
        for tensor in harness.varve_json(self.store, "ls", "best:loss"):
            self.assertIn(tensor["name"], text)
        text = self.open(link("tensor", step="main@40", name="model.layers.0.mlp.bias"))
        self.assertRegex(text, r"NaN\n1\n")
        text = self.open(link("diff", before="main@30", after="main@40"))
        self.assertIn("2 of 5 layers are frozen", text)

    def cells(self, caption):
        """The texts of a table's cells, row by row."""
        return self.browser.execute_script(
            "const isIt = (table) => table.caption.textContent === arguments[0];"
            "const { rows } = [...document.querySelectorAll('table')].find(isIt).tBodies[0];"
            "return [...rows].map((row) => [...row.cells].map((cell) => cell.textContent));",
            caption,
        )

    def test_numbers_read_as_the_command_prints_them(self):
        """Every rounding is that of the command: sizes, shares, metrics and values; times have its zone."""
        store = self.folder / "numbers"
        rng = random.Random(3)
        sizes = [1, 1023, 1024, 1280, 1331, 1792, 100 << 10, 102912, 103936, 104858, (1 << 20) - 52]
        tensors = {f"t{size}": ("U8", [size], rng.randbytes(size)) for size in sizes}
        values = [0.0, -0.0, 1e-5, -1e-9, 1 / 3, 0.1, 1e-4, 0.00012345675, 100000.5, 100001.5]
        values += [999999.5, 1e6, 1234565, 123456789, 1e15, 1e20, 5e-324, 1.5e308, -12.5]
        values += [math.inf, -math.inf, math.nan, *(rng.gauss(0, 10) ** 9 for _ in range(20))]
        metrics = [f"--metric=m{i:02}={value!r}" for i, value in enumerate(values)]
        tensors["doubles"] = ("F64", [len(values)], struct.pack(f"<{len(values)}d", *values))
        tensors["integers"] = ("I32", [4], struct.pack("<4i", 1234567, -(2**31), 2**31 - 1, 0))
        path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
        with mock.patch.dict(os.environ, TZ="NPT-5:45"):
            harness.varve(store, "import", path, "--init", "--step", 3_000_000, *metrics)
            steps = harness.varve(store, "steps").stdout
        self.browser.execute_cdp_cmd(
            "Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kathmandu"}
        )
        with view_case.View(store) as view:
            self.views[store] = view
            self.open("runs", store)
            (row,) = self.cells("Steps of all runs")
            _, created, _, logical, new, stored, shown, _, _ = row
            self.assertRegex(
                steps, rf"{re.escape(logical)} +{re.escape(new)} +{re.escape(stored)} "
            )
            self.assertIn(f"{created} ", steps)
            self.assertIn(" " + shown + "\n", steps)
            self.open(link("step", step="latest"), store)
            told = harness.varve(store, "-q", "ls", "latest", "--stored").stdout.splitlines()[1:]
            told = {line.split()[0]: re.split(" {2,}", line) for line in told}
            rows = self.cells("Tensors of main@3000000")
            self.assertEqual(len(rows), len(told))
            for name, dtype, shape, _, shards, size, encoded, _, _, _ in rows:
                self.assertEqual([name, dtype, shape, shards, size, encoded], told[name])
            for name in ("doubles", "integers"):
                text = self.open(link("tensor", step="latest", name=name), store)
                told = harness.varve(store, "get", "latest", name, "-n", 16).stdout
                shown = [row[1] for row in self.cells(f"First values of {name}")]
                self.assertEqual(shown, told.split("values\n")[1].split()[:16])
                for title, word in (("smallest", "min"), ("largest", "max"), ("mean", "mean")):
                    (number,) = re.findall(rf"^{word} +(.*)$", told, re.MULTILINE)
                    self.assertIn(f"{title}\n{number}\n", text)
        self.browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})

    def test_each_shard_says_how_it_changed(self):
        """group_saver changes the tensor that lies in two shards, and the page tells of both."""
        text = self.open(link("tensor", step="main@2", name="columns", beside="main@1"), self.group)
        told = harness.varve_json(self.group, "diff", 1, 2, "columns", "--values")["changed"]
        self.assertGreater(len(told), 1)
        for row in told:
            elements = row["values"]["changed_elements"]
            self.assertIn(f"shard {row['shard']}: {elements} of ", text.replace("\u202f", ""))

    def test_what_is_wrong_is_said(self):
        for fragment, says in (
            (link("step", step="main@11"), "no step 11 of run main"),
            (link("tensor", step="main@10", name="x"), "no tensor x"),
            (link("diff", before="nowhere", after="main@10"), "nowhere"),
        ):
            self.assertIn(says, self.open(fragment))
            logged = self.browser.get_log("browser")  # the browser notes the 404 itself
            self.assertTrue(all("404" in entry["message"] for entry in logged), logged)

    def test_hostile_names_stay_text(self):
        run = "<b>run</b>"
        views = [
            "runs",
            "space",
            link("step", step=f"{run}@2"),
            link("diff", before=f"{run}@1", after=f"{run}@2"),
            "health",
        ] + [link("tensor", step=f"{run}@2", name=name) for name in view_case.HOSTILE]
        self.browser.get("about:blank")
        for fragment in views:
            with self.subTest(view=fragment):
                text = self.open(fragment, self.hostile)
                # A dialog would have made every call fail. No name has become an element.
                made = "script:not([src]), b, i, u, img, iframe, main svg svg, [onload], [onerror]"
                self.assertEqual(self.browser.find_elements(By.CSS_SELECTOR, made), [])
                self.assertEqual(
                    self.browser.find_elements(By.CSS_SELECTOR, "a[href^='javascript']"), []
                )
                self.assertNotIn("\u202e", text)
                self.assertNotIn("\x1b", text)
        text = self.open(link("step", step=f"{run}@2"), self.hostile)
        self.assertIn("<img src=x onerror=alert(1)>", text)
        self.assertIn("line\\x0abreak\\x1b[31m", text)
        self.keep_picture("hostile_step")

    def test_keys_and_links(self):
        self.open("runs")
        body = self.browser.find_element(By.TAG_NAME, "body")
        for key, title in enumerate(("Runs", "Space", "Step", "Tensor", "Diff", "Health"), 1):
            body.send_keys(str(key))
            self.wait(f"document.querySelector('h2.view-title')?.textContent === '{title}'", title)
            self.wait_until_shown()
            current = self.browser.find_element(By.CSS_SELECTOR, "nav [aria-current=page]")
            self.assertEqual(current.text, title)
        self.open(link("step", step="main@20"))
        body = self.browser.find_element(By.TAG_NAME, "body")
        body.send_keys("]")
        self.wait("location.hash.includes('main%4030')", "the next step")
        self.wait_until_shown()
        self.browser.find_element(By.TAG_NAME, "body").send_keys("/")
        self.assertEqual(self.browser.switch_to.active_element.get_attribute("name"), "step")
        self.browser.switch_to.active_element.send_keys("1")  # a digit in a field is no key
        self.assertIn("step?", self.browser.current_url)
        self.open("health")
        body = self.browser.find_element(By.TAG_NAME, "body")
        body.send_keys("?")
        self.assertIn("ask again", self.browser.find_element(By.ID, "help").text)
        self.assertEqual(self.faults_of_axe(), [])
        self.browser.switch_to.active_element.send_keys(Keys.ESCAPE)

    def focused(self):
        return self.browser.switch_to.active_element

    def test_the_keyboard_goes_on_where_it_was(self):
        """After a form, a page of a table, a column's order, and in a view that a link has opened."""
        self.open("runs")
        field = self.browser.find_element(By.NAME, "sort")
        field.send_keys("loss" + Keys.ENTER)
        self.wait("location.hash.includes('sort=loss')", "the form was not sent")
        self.wait_until_shown()
        self.assertEqual(self.focused().get_attribute("name"), "sort")
        many = self.folder / "many"
        tensors = {f"t{i:03}": view_case.floats([i]) for i in range(120)}
        path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
        harness.varve(many, "import", path, "--init", "--step", 1)
        with view_case.View(many) as view:
            self.views[many] = view
            self.open(link("step", step="1"), many)
            for rows, stays in (("51 to 100", "Next"), ("101 to 120", "")):
                self.browser.find_element(By.CSS_SELECTOR, "[data-key=Next]").send_keys(Keys.ENTER)
                self.wait(f"document.body.innerText.includes('{rows} of 120')", rows)
                self.assertEqual(self.focused().get_attribute("data-key") or "", stays)
            self.assertEqual(self.focused().get_attribute("role"), "region")
            self.browser.find_element(By.CSS_SELECTOR, "[data-key=bytes]").send_keys(Keys.ENTER)
            self.wait("document.querySelector('[aria-sort=descending]')", "the order")
            self.wait_until_shown()
            self.assertEqual(self.focused().get_attribute("data-key"), "bytes")
            tensor = self.browser.find_element(By.LINK_TEXT, "t000")
            self.assertGreater(self.browser.execute_script("return scrollY"), 0)
            tensor.send_keys(Keys.ENTER)
            self.wait("document.querySelector('h2').textContent === 'Tensor'", "the tensor")
            self.assertEqual(self.focused().get_attribute("id"), "main")
            self.assertEqual(self.browser.execute_script("return scrollY"), 0)

    def test_the_address_names_the_page_of_a_table(self):
        """Who gets the link sees these rows. The page stays where the view is asked again or left."""
        many = self.folder / "pages"
        tensors = {f"t{i:03}": view_case.floats([i]) for i in range(120)}
        path = safetensors_bytes.write(self.folder / "pages.safetensors", tensors)
        harness.varve(many, "import", path, "--init", "--step", 1)

        def first_row():
            return self.browser.execute_script(
                "return [...document.querySelectorAll('table')]"
                ".find(table => table.caption.textContent.startsWith('Tensors of'))"
                ".tBodies[0].rows[0].cells[0].textContent"
            )

        def press(key):
            self.browser.find_element(By.CSS_SELECTOR, f"[data-key={key}]").send_keys(Keys.ENTER)
            self.wait_until_shown()

        with view_case.View(many) as view:
            self.views[many] = view
            self.open(link("step", step="1"), many)
            press("name")  # it was sorted by this, upward
            self.assertEqual(first_row(), "t119")
            press("Next")
            self.assertEqual(first_row(), "t069")
            address = self.browser.current_url
            self.browser.find_element(By.TAG_NAME, "body").send_keys("r")
            self.wait_until_shown()
            self.assertEqual(first_row(), "t069")
            for key in "63":  # to another view and back
                self.browser.find_element(By.TAG_NAME, "body").send_keys(key)
                self.wait_until_shown()
            self.assertEqual(first_row(), "t069")
            fragment = address.partition("#/")[2]
            self.assertIn("51 to 100 of 120", self.open(fragment, many))
            self.assertEqual(first_row(), "t069")
            # A link to rows that are gone, and one that names none.
            self.assertIn("101 to 120 of 120", self.open(fragment.replace("=50", "=5000"), many))
            self.assertIn("1 to 50 of 120", self.open(fragment.replace("=50", "=-5"), many))
            # Another glob begins with its first row.
            self.open(fragment, many)
            field = self.browser.find_element(By.NAME, "glob")
            field.send_keys("t*" + Keys.ENTER)
            self.wait("location.hash.includes('glob=')", "the form was not sent")
            self.wait_until_shown()
            self.assertEqual(first_row(), "t000")

    def test_the_theme_is_kept(self):
        self.color_scheme("light")
        self.open("health")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = self.browser.execute_script(f"return {ground}")
        self.browser.find_element(By.ID, "theme").click()
        dark = self.browser.execute_script(f"return {ground}")
        self.assertNotEqual(light, dark)
        self.open("health")
        self.assertEqual(self.browser.execute_script(f"return {ground}"), dark)
        self.browser.find_element(By.ID, "theme").click()
        self.assertEqual(self.browser.execute_script(f"return {ground}"), light)
        self.browser.execute_script("localStorage.clear()")
        self.color_scheme("")

    def print_on_paper(self, fragment, store, name, theme):
        """Keeps the view as PDF, and looks at it as it lies on the paper."""
        self.open(fragment, store)
        self.browser.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
        printed = self.chromium.keep_print(self.pictures / f"{name}_print.pdf")
        self.assertEqual(set(re.findall(rb"/MediaBox \[0 0 (\d+)[.\d]* (\d+)", printed)), {A4})
        with self.chromium.on_paper() as width:
            seen = self.browser.execute_script(ON_PAPER, width)
            title = self.browser.find_element(By.ID, "store").text
        for fault in ("cut", "hidden", "crowded", "controls"):
            self.assertEqual(seen[fault], [], fault)
        self.assertEqual(title, str(store))
        return tuple(seen["look"])

    def test_every_view_prints_on_paper(self):
        """In black on white whatever the screen shows, without controls, and no table is cut off."""
        wide = self.folder / "wide"
        view_case.wide_store(self.folder, wide)
        step, name = f"main@{view_case.WIDE_STEP}", view_case.WIDE_NAMES[0]
        with view_case.View(wide) as view:
            self.views[wide] = view
            views = [(key, text, self.store) for key, text in self.views_of_the_store().items()]
            views += [
                ("group_step", link("step", step="main@2"), self.group),
                ("group_tensor", link("tensor", step="main@2", name="columns"), self.group),
                ("wide_runs", "runs", wide),
                ("wide_step", link("step", step=step), wide),
                ("wide_tensor", link("tensor", step=step, name=name, beside="main@1"), wide),
                ("wide_diff", link("diff", before="main@1", after=step), wide),
            ]
            looks = set()
            for scheme, theme in (("light", ""), ("dark", ""), ("light", "dark")):
                self.color_scheme(scheme)
                for key, fragment, store in views if theme else views[:1]:
                    with self.subTest(view=key, scheme=scheme, theme=theme):
                        look = self.print_on_paper(fragment, store, key, theme)
                        looks.add(look)
            self.assertEqual(len(looks), 1, looks)
            self.assertEqual(looks.pop()[0], "rgb(255, 255, 255)")
        self.color_scheme("")

    def test_plots_and_tables_are_saved(self):
        downloads = self.folder / "downloads"
        downloads.mkdir(exist_ok=True)
        self.open(link("step", step="main@40"))
        for button in self.browser.find_elements(By.XPATH, "//button[text()='SVG']"):
            button.click()
        for button in self.browser.find_elements(By.XPATH, "//button[text()='CSV of these rows']"):
            button.click()
        csv, svg = (
            downloads / "tensors_of_main_40.csv",
            downloads / "tensors_of_main_40_below_model.svg",
        )
        WebDriverWait(self.browser, view_browser.PATIENCE).until(
            lambda _: csv.exists() and svg.exists()
        )
        lines = csv.read_text(encoding="utf-8").splitlines()
        told = harness.varve_json(self.store, "ls", 40, "--stored")
        self.assertEqual(len(lines), len(told) + 1)
        self.assertIn(f"{told[0]['name']},{told[0]['dtype']}", lines[1])
        self.assertIn(f",{told[0]['logical_bytes']},{told[0]['stored_bytes']},", lines[1])
        root = ElementTree.parse(svg).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        rects = root.findall(".//{http://www.w3.org/2000/svg}rect")
        self.assertGreater(len(rects), 3)
        self.assertTrue(all(rect.get("fill") for rect in rects))

    def saved_files(self):
        """Presses every button that saves a file, and returns what each would have saved."""
        return self.browser.execute_async_script(SAVED_FILES)

    def check_svg(self, text, title, legend):
        """The file shows all without the page: it names its lines, and no text is cut off."""
        path = self.folder / "plot.svg"
        path.write_text(text, encoding="utf-8")
        self.browser.get(path.as_uri())
        texts, outside = self.browser.execute_script(TEXTS_OF_SVG)
        if legend:
            self.keep_picture("saved_plot")
        self.assertEqual(outside, [])
        self.assertEqual(texts[: 1 + len(legend)], [title, *legend])

    def test_every_plot_and_every_table_is_saved(self):
        views = [(fragment, self.store) for fragment in self.views_of_the_store().values()]
        views.append((link("step", step="main@2"), self.group))
        for fragment, store in views:
            with self.subTest(view=fragment):
                self.open(fragment, store)
                plots = self.browser.execute_script(
                    "return [...document.querySelectorAll('figure')].map((plot) =>"
                    "[plot.querySelector('figcaption').textContent,"
                    "[...plot.querySelectorAll('.legend li')].map((entry) => entry.textContent.trim())])"
                )
                tables = self.browser.execute_script(
                    "return [...document.querySelectorAll('table')].map((table) =>"
                    "[table.tHead.rows[0].cells.length, table.tBodies[0].rows.length])"
                )
                saved = self.saved_files()
                svgs = [text for text in saved if text.startswith("<svg")]
                rows = [list(csv.reader(text.splitlines())) for text in saved if text not in svgs]
                self.assertEqual(
                    [(len(table[0]), len(table) - 1) for table in rows],
                    [tuple(table) for table in tables],
                )
                self.assertEqual(len(svgs), len(plots))
                for text, (title, legend) in zip(svgs, plots, strict=True):
                    self.check_svg(text, title, legend)

    def test_a_formula_does_not_reach_a_spreadsheet(self):
        downloads = self.folder / "downloads"
        downloads.mkdir(exist_ok=True)
        self.open(link("step", step="<b>run</b>@2"), self.hostile)
        buttons = self.browser.find_elements(By.XPATH, "//button[text()='CSV of these rows']")
        buttons[0].click()
        csv = downloads / "tensors_of_b_run_b_2.csv"
        WebDriverWait(self.browser, view_browser.PATIENCE).until(lambda _: csv.exists())
        text = csv.read_text(encoding="utf-8")
        self.assertIn("\n'=HYPERLINK(1),", text)
        self.assertNotIn("\n=", text)

    def test_a_new_step_is_shown_when_asked_again(self):
        live = self.folder / "live"
        with harness.StoreTool(live) as writer:
            writer.must("save 1 1")
            with view_case.View(live) as view:
                self.browser.get(view.url)
                self.wait_until_shown()
                self.assertNotIn("main@2", self.browser.find_element(By.ID, "main").text)
                writer.must("save 2 2")
                before = self.browser.execute_script("return main.dataset.ready")
                self.browser.find_element(By.ID, "refresh").click()
                self.wait(f"main.dataset.ready !== '{before}'", "the view is not shown again")
                self.wait_until_shown()
                self.assertIn("main@2", self.browser.find_element(By.ID, "main").text)

    def test_no_digit_of_a_large_number_is_lost(self):
        store = self.folder / "large_numbers"
        step, values = 2**64 - 1, [2**53 + 1, -(2**63)]
        tensors = {"i": ("I64", [2], struct.pack("<2q", *values))}
        path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
        harness.varve(store, "import", path, "--init", "--step", step)
        with view_case.View(store) as view:
            self.views[store] = view
            self.assertIn(f"main@{step}", self.open("runs", store))
            text = self.open(link("tensor", step=f"main@{step}", name="i"), store)
            for value in values:
                self.assertIn(str(value), text)
            # A spreadsheet gets them as numbers.
            self.assertIn(f"\n1,{values[1]}\r\n", "".join(self.saved_files()))

    def test_an_answer_that_takes_long_is_awaited(self):
        """The page is told twice that sharing is computed, and once that its answer is lost."""
        self.open("health")
        self.browser.execute_script(
            """
            const fetched = window.fetch;
            window.seen = [];
            const reply = (status, body) => Promise.resolve(new Response(JSON.stringify(body), { status }));
            window.fetch = (url, options) => {
              if (!/api.(sharing|job)/.test(url)) return fetched(url, options);
              window.seen.push([url, document.getElementById("status").textContent]);
              if (window.seen.length === 3) return reply(410, { error: "lost" });
              if (window.seen.length === 4) return fetched("api/sharing", options);
              return reply(202, { job: 7, seconds: 1 });
            };
            location.hash = "#/space";
            """
        )
        self.wait("window.seen.length === 4", "the page has not asked again")
        self.wait_until_shown()
        seen = self.browser.execute_script("return window.seen")
        asked = ["api/sharing", "api/job?id=7", "api/job?id=7", "api/sharing"]
        self.assertEqual([url for url, _ in seen], asked)
        self.assertIn("Computing: sharing", seen[1][1])
        text = self.browser.find_element(By.ID, "main").text
        self.assertIn("New bytes of a step, by group of tensors", text)
        status = self.browser.find_element(By.ID, "status").text
        self.assertNotIn("Computing", status)

    def test_an_answer_is_given_up_when_another_view_is_opened(self):
        self.open("health")
        self.browser.execute_script(
            """
            const fetched = window.fetch;
            window.seen = [];
            window.fetch = (url, options) => {
              if (!/api.(sharing|job)/.test(url)) return fetched(url, options);
              window.seen.push(url);
              const late = () => new Response(JSON.stringify({ job: 7, seconds: 1 }), { status: 202 });
              return new Promise((done, failed) => {
                const fail = () => failed(new DOMException("aborted", "AbortError"));
                if (options.signal?.aborted) fail();
                options.signal?.addEventListener("abort", fail);
                setTimeout(() => done(late()), 50);
              });
            };
            location.hash = "#/space";
            """
        )
        self.wait("window.seen.length > 3", "the page has not asked again")
        self.browser.execute_script("location.hash = '#/health'")
        self.wait("window.seen.at(-1) === 'api/job?id=7&giveup=1'", "the page has not given it up")
        self.wait_until_shown()
        self.assertEqual(self.browser.find_element(By.TAG_NAME, "h2").text, "Health")

    def drawn_ranks(self):
        """Labels of the drawing: what each rank is, and where."""
        texts = self.browser.execute_script(
            "const plot = [...document.querySelectorAll('figure')].find("
            "(one) => one.querySelector('figcaption').textContent === 'Which rank is where');"
            "return [...plot.querySelectorAll('text')].map((text) => text.textContent);"
        )
        return dict(zip((text.split(":")[0] for text in texts[::2]), texts[1::2], strict=True))

    def test_places_of_ranks_are_those_of_the_command(self):
        """Ranks of one place in tensor parallelism hold the same part of a tensor that it cuts."""
        self.open(link("step", step="main@2"), self.group)
        drawn = self.drawn_ranks()
        topology = harness.varve_json(self.group, "show", 2)["topology"]
        self.assertEqual(drawn, {f"rank {i}": text for i, text in enumerate(places(topology))})
        held = {}
        for shard in harness.varve_json(self.group, "show", 2, "columns"):
            held.setdefault(shard["layout"], set()).add(
                drawn[f"rank {shard['rank']}"].split(" dp")[0]
            )
        self.assertEqual(sorted(map(sorted, held.values())), [["tp 0"], ["tp 1"]])

    def answer_ranks(self, answer):
        """Answers what the page asks of ranks with a store of so many, which no test can save."""
        self.browser.execute_script(
            """
            const fetched = window.fetch;
            const [topology, total] = arguments;
            window.fetch = (url, options) => {
              if (!/api.ranks/.test(url)) return fetched(url, options);
              const asked = new URL(url, location).searchParams;
              const [offset, limit] = ["offset", "limit"].map((name) => Number(asked.get(name)));
              const rows = [];
              for (let rank = offset; rank < Math.min(offset + limit, total); rank += 1)
                rows.push({ rank, shards: 1, bytes: 100 + rank, bytes_by_role: {} });
              const body = { total, offset, rows, has_ranks: true, topology };
              return Promise.resolve(new Response(JSON.stringify(body)));
            };
            """,
            *answer,
        )

    def test_ranks_lie_as_megatron_numbers_them(self):
        plain = {"dp": 1, "tp": 1, "pp": 1, "vpp": 1, "sp": 1, "cp": 1, "ep": 1, "zero_stage": 0}
        plain["rank_order"] = "tp-cp-ep-dp-pp"
        for degrees in (
            {"tp": 2, "dp": 2, "pp": 2},
            {"tp": 2, "dp": 4, "pp": 2, "ep": 2},
            {"tp": 2, "dp": 4, "pp": 2, "ep": 4},
            {"cp": 2, "dp": 4, "pp": 2, "ep": 4},
            {"tp": 2, "dp": 2, "pp": 4, "rank_order": "tp-cp-ep-pp-dp"},
            {"dp": 8, "ep": 2},
        ):
            topology = plain | degrees
            world = math.prod(topology[kind] for kind in ("tp", "cp", "dp", "pp"))
            topology["world_size"] = world
            with self.subTest(topology=degrees):
                self.open("health", self.group)
                self.answer_ranks((topology, world))
                self.browser.execute_script("location.hash = '#/step?step=main@2'")
                self.wait("document.querySelector('h2').textContent === 'Step'", "the step")
                self.wait_until_shown()
                expected = {f"rank {i}": text for i, text in enumerate(places(topology))}
                self.assertEqual(self.drawn_ranks(), expected)
        self.keep_picture("many_ranks")

    def test_ranks_come_in_pages(self):
        self.open("health", self.group)
        self.answer_ranks((None, 1200))
        self.browser.execute_script("location.hash = '#/step?step=main@2'")
        self.wait("document.querySelector('h2').textContent === 'Step'", "the step")
        self.wait_until_shown()
        caption = "What each rank of main@2 holds"
        self.assertEqual([row[0] for row in self.cells(caption)][::49], ["0", "49"])
        last = self.browser.execute_script(
            "return [...document.querySelectorAll('[data-key=Last]')].at(-1)"
        )
        last.send_keys(Keys.ENTER)
        self.wait(
            "document.body.innerText.includes('1\u202f151 to 1\u202f200 of 1\u202f200')", "the rows"
        )
        self.assertEqual(self.cells(caption)[-1][0], "1199")
        self.assertIn("The first 64 of 1\u202f200", self.browser.find_element(By.ID, "main").text)

    def test_frozen_layers_are_seen_among_many(self):
        store = self.folder / "layers"
        rng = random.Random(21)
        frozen = [f"model.layers.{i}" for i in (3, 7, 41)]
        tensors = {f"model.layers.{i}.w": view_case.matrix(rng, 4, 4) for i in range(60)}
        for step in (1, 2):
            path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
            harness.varve(store, "import", path, "--init", "--step", step)
            for name in tensors:
                if name.removesuffix(".w") not in frozen:
                    tensors[name] = view_case.matrix(rng, 4, 4)
            tensors["model.layers.60.w"] = view_case.matrix(rng, 4, 4)
        with view_case.View(store) as view:
            self.views[store] = view
            text = self.open(link("diff", before=1, after=2), store)
            self.assertIn("3 of 61 layers are frozen: no chunk of them changed.", text)
            self.assertIn(f"They are {', '.join(frozen)}.", text)
            self.assertIn("model.layers.60", text)
            cells = self.browser.execute_script(
                "const cells = [...document.querySelectorAll('rect.cell:has(title)')];"
                "return cells.map((one) => [one.classList.contains('none'), one.textContent]);"
            )
            self.assertEqual(len(cells), 61)
            self.assertEqual(
                [title for none, title in cells if none], [f"{one}: frozen" for one in frozen]
            )
            self.assertEqual(cells[60][1], "model.layers.60: new")
            self.assertEqual(self.faults_of_axe(), [])
            self.keep_picture("many_layers")
            self.open(link("diff", before=1, after=2, layers="frozen"), store)
            rows = self.cells("Layers, as numbers")
            self.assertEqual([row[0] for row in rows[:3]], frozen)
            self.assertEqual([row[6] for row in rows[:3]], ["frozen"] * 3)

    def test_plots_of_a_history_are_of_its_end(self):
        """Also with a link to another page of the table."""
        store = self.folder / "history"
        name, last = "w", 53
        for step in range(1, last + 1):
            tensors = {name: view_case.floats([step])}
            path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
            harness.varve(store, "import", path, "--init", "--step", step)
        with view_case.View(store) as view:
            self.views[store] = view
            for page in ({}, {"table-from": 50}, {"table-order": "up"}):
                text = self.open(link("tensor", step=last, name=name, **page), store)
                self.assertIn(f"The last 50 of {last} changes.", text)
                caption = f"How much {name} changed, in its last 8 changes"
                self.assertEqual(
                    [int(row[0]) for row in self.cells(caption)], list(range(last - 7, last + 1))
                )

    def test_the_best_value_is_that_of_the_best_step(self):
        store = self.folder / "best"
        tensors = {"w": view_case.floats([1])}
        for step, value in ((1, 3), (2, "-inf"), (3, "nan"), (4, 2)):
            path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
            harness.varve(
                store, "import", path, "--init", "--step", step, "--metric", f"loss={value}"
            )
        with view_case.View(store) as view:
            self.views[store] = view
            for best, row in (("", ["main", "2", "-inf"]), ("highest", ["main", "1", "3"])):
                self.open(link("runs", best=best), store)
                self.assertEqual(self.cells(f"Best loss of each run ({best or 'lowest'})"), [row])

    def test_the_mark_at_zero_has_no_sign(self):
        store = self.folder / "zero"
        for step, value in ((1, 4), (2, 0.04)):  # the axis begins a little below 0
            tensors = {"w": view_case.floats([step])}
            path = safetensors_bytes.write(self.folder / "in.safetensors", tensors)
            harness.varve(
                store, "import", path, "--init", "--step", step, "--metric", f"loss={value}"
            )
        with view_case.View(store) as view:
            self.views[store] = view
            self.open(link("runs", metric="loss"), store)
            texts = self.browser.execute_script(
                "return [...document.querySelectorAll('.plot text')].map((text) => text.textContent)"
            )
        self.assertIn("0", texts)
        self.assertNotIn("-0", texts)

    def test_forget_takes_several_of_a_rule(self):
        rules = {"keep-best": ["loss:1", "accuracy:max:1"], "keep-last": 1}
        told = harness.varve_json(
            self.store, "forget", "--dry-run", "--keep-last", 1, *("--keep-best", "loss:1"),
            *("--keep-best", "accuracy:max:1"),
        )  # fmt: skip
        text = self.open(link("space", **rules))
        self.assertIn("--keep-last 1 --keep-best loss:1 --keep-best accuracy:max:1", text)
        self.assertIn(f"{len(told['dropped'])} of {len(told['decisions'])} steps", text)
        fields = self.browser.find_elements(By.NAME, "keep-best")
        self.assertEqual([one.get_attribute("value") for one in fields], [*rules["keep-best"], ""])
        fields[2].send_keys("accuracy:1" + Keys.ENTER)
        self.wait("location.hash.includes('accuracy%3A1&')", "the form was not sent")
        self.wait_until_shown()
        text = self.browser.find_element(By.ID, "main").text
        self.assertIn("--keep-best accuracy:max:1 --keep-best accuracy:1", text)

    def test_a_damaged_store_shows_what_can_be_read(self):
        store = self.folder / "damaged"
        view_case.train(self.folder, store)
        whole = len(harness.varve_json(store, "steps"))
        for table in sorted((store / "db").glob("*.sst")):
            kept = table.read_bytes()
            table.write_bytes(kept[:8] + bytes(byte ^ 0x55 for byte in kept[8:24]) + kept[24:])
            done = subprocess.run(
                [harness.program("varve"), "-s", str(store), "--json", "steps"],
                capture_output=True,
                text=True,
            )
            if done.stdout and done.returncode != 0:
                break
            table.write_bytes(kept)
        told = json.loads(done.stdout)
        with view_case.View(store) as view:
            self.views[store] = view
            text = self.open("runs", store)
            self.assertIn("The store is damaged.", text)
            self.assertIn(table.name, text)
            self.assertEqual(len(self.cells("Steps of all runs")), len(told))
            self.assertLessEqual(len(told), whole)
            self.assertEqual(self.faults_of_axe(), [])
            self.keep_picture("damaged_runs")
            self.assertIn("The store is damaged.", self.open("space", store))
        self.browser.get_log("browser")  # the browser notes each 500

    def test_every_view_says_that_newer_snapshots_are_not_known(self):
        place = self.folder / "remote"
        url = f"file://{place}"
        harness.varve(self.store, "push", url)
        with view_case.View(url) as view:
            self.views[url] = view
            self.assertNotIn("no newer snapshot", self.open("runs", url))
            place.rename(self.folder / "away")
            place.write_text("no folder")
            while "warning" not in view.ask("store"):
                pass  # it looks for new ones every two seconds
            for fragment in ("runs", "space", link("step", step="latest")):
                with self.subTest(view=fragment):
                    self.assertIn("no newer snapshot could be looked for", self.open(fragment, url))

    def test_another_origin_gets_nothing(self):
        """A page of another port of this machine, which is another origin, knows the whole URL.

        Its server has no policy that would keep it from asking. What is answered is seen in the network.
        """
        url = self.views[self.store].url
        place = self.folder / "elsewhere"
        place.mkdir()
        (place / "index.html").write_text("<title>elsewhere</title>", encoding="utf-8")
        (place / "own.json").write_text('"its own"', encoding="utf-8")
        handler = functools.partial(QuietHandler, directory=str(place))
        server = self.enterContext(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        script = (
            "const done = arguments[2];"
            "fetch(arguments[0], arguments[1]).then(r => r.text()).then(done, () => done('nothing'))"
        )
        with view_browser.Browser(self.folder / "watched", watched=True) as watched:
            watched.driver.get(f"http://127.0.0.1:{server.server_port}/index.html")
            read = functools.partial(watched.driver.execute_async_script, script)
            self.assertEqual(read("own.json", {}), '"its own"')  # so it may ask
            for path in ("api/runs", "app.js", ""):
                for how in ({}, {"mode": "no-cors"}, {"credentials": "include"}):
                    text = read(url + path, how)
                    self.assertIn(text, ("nothing", ""))
                    self.assertEqual(watched.status_of(url + path), 403, (path, how))
            # A link may lead to the page, and to nothing else.
            for path, says in (("", "Runs"), ("api/runs", "another site gets no answer")):
                watched.driver.get(f"http://127.0.0.1:{server.server_port}/index.html")
                watched.driver.execute_script("location.href = arguments[0]", url + path)
                watched.wait(f"document.body.innerText.includes('{says}')", path)


if __name__ == "__main__":
    unittest.main()
