# SPDX-License-Identifier: Apache-2.0
"""Guards the floors of the house (docs/architecture.md): who may include whom, and who may name what.

Run as `layering_test.py ROOT`. It prints the floors, and each include that breaks a rule, and exits 1
if there is one. `layering_test.py ROOT --counts` prints what is counted besides.
"""

import collections
import fnmatch
import pathlib
import re
import sys

SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# The rooms of each folder, the ground floor first. A file may include what lies in its own room and in
# the rooms below it, so that no two rooms include each other. `store` is what lies in store/ itself.
ROOMS = {
    "include/varve": ["include/varve"],
    "base": ["base"],
    "objects": ["objects", "objects/s3", "objects/rados"],
    "codec": ["codec/planes", "codec/entropy", "codec/predict", "codec"],
    "store": [
        "store/shards",
        "store/format",
        "store/db",
        "store/read",
        "store/save",
        "store/ops",
        "store/remote",
        "store/group",
        "store",
    ],
    "trainer_hooks": [
        "trainer_hooks/ranks",
        "trainer_hooks/layouts",
        "trainer_hooks/state",
        "trainer_hooks/load",
        "trainer_hooks/save",
        "trainer_hooks/group",
        "trainer_hooks",
    ],
    "cuda": ["cuda"],
    "capi": ["capi"],
    "cli": [
        "cli/formats",
        "cli",
        "cli/foreign",
        "cli/manual",
        "cli/verbs",
        "cli/view",
        "cli/main.cc",
    ],
    "examples": ["examples"],
    "python": ["python/src"],
}
# The folders, rooms and files that each folder may include, besides its own rooms.
FOLDERS_BELOW = {
    "include/varve": set(),
    "base": {"include/varve"},
    "objects": {"include/varve", "base"},
    "codec": {"include/varve", "base"},
    "store": {"include/varve", "base", "codec", "objects"},
    "trainer_hooks": {"include/varve", "base", "codec", "objects", "store"},
    "cuda": {"include/varve", "base", "codec"},
    "cli": {"include/varve", "base", "codec", "objects", "store"},
    "capi": {"include/varve"},
    "examples": {"include/varve"},
    "python": {"include/varve", "cli/foreign", "cli/parse.h"},
}
# The public headers of the hooks. A user of a store alone gets none of them.
HOOKS = {
    f"include/varve/{name}.h"
    for name in (
        "async_checkpointer",
        "cuda",
        "device_tensor_source",
        "flags",
        "global_names",
        "group_checkpointer",
        "hooks",
        "layouts",
        "load",
        "mpi_ranks",
        "nccl_ranks",
        "rank_group",
        "state_item",
        "trainer_hooks",
        "training_state",
    )
}
MAY_INCLUDE_HOOKS = {"trainer_hooks", "cuda", "capi", "examples", "python"}
# All that varve.h does not bring: what needs libraries of others.
APART = {
    f"include/varve/{name}.h"
    for name in ("c", "cuda", "mpi_ranks", "nccl_ranks", "rados", "s3", "varve")
}
FLOORS = [room for rooms in ROOMS.values() for room in rooms]
OTHER_FOLDERS = {"tests", "bench"}

# Headers of others, and the only files that may include them. Tests and benchmarks are free; an
# example is a user's program, which brings its own libraries.
GPU = ["cuda.h", "cuda_*", "cuda/*", "cub/*", "thrust/*"]
BORDERS = [
    (["rocksdb/*"], ["store/*"]),
    (["flatbuffers/*", "*_generated.h"], ["store/*"]),
    (["zstd.h", "zdict.h", "zstd_errors.h"], ["codec/entropy/zstd*.cc"]),
    (["xxhash.h", "xxh_x86dispatch.h"], ["base/*", "codec/*", "cuda/*"]),
    (["tbb/*", "oneapi/*"], ["base/*", "store/*", "trainer_hooks/*", "examples/*"]),
    (["CLI/*", "CLI11.hpp"], ["cli/*", "examples/*"]),
    (["zlib.h"], ["cli/formats/*"]),
    (GPU, ["cuda/*", "include/varve/cuda.h", "examples/cuda_*"]),
    (["nccl.h"], ["cuda/*"]),
    (["curl/*", "openssl/*"], ["objects/s3/*"]),
    (["rados/*"], ["objects/rados/*"]),
    (["httplib.h"], ["cli/view/http_server.cc"]),
    (["mpi.h"], ["trainer_hooks/ranks/*"]),
    (["sodium.h"], ["store/db/sealer.h", "store/db/sealer.cc"]),
    (["nlohmann/*"], ["cli/*"]),
    (["nanobind/*"], ["python/src/*"]),
    # The codec turns bytes into bytes: no files, no threads.
    (
        [
            "thread",
            "mutex",
            "shared_mutex",
            "condition_variable",
            "future",
            "fstream",
            "filesystem",
            "unistd.h",
            "fcntl.h",
            "sys/*",
            "pthread.h",
        ],
        ["!codec/*"],
    ),
    # Geometry is pure, and what describes records and keys does not ask the database.
    (["rocksdb/*", "thread", "mutex"], ["!store/shards/*"]),
]


# Everything that no public header declares lies in varve::internal.
PUBLIC_NAMESPACE = re.compile(r"^namespace varve \{$(.*?)^\}  // namespace varve$", re.M | re.S)
WITHOUT_NAME = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.M | re.S)
FORWARD_DECLARATION = re.compile(r"^(?:class|struct) \w+;$", re.M)
DEFINES = re.compile(
    r"^(?!using namespace)"
    r"(?:(?:class|struct|enum class|enum|using|constexpr|inline|const|template)\b"
    r"|[\w:]+[\w:<>,*&\s]*?[\s*&>])"
    r"[\w:<>,*&\s]*?(\w+)(?:::~?[\w:]+)?\s*(?:\(|=|\{|:$|;)",
    re.M,
)


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def may_include(path, allowed):
    forbidden = [pattern[1:] for pattern in allowed if pattern.startswith("!")]
    if forbidden:
        return not matches(path, forbidden)
    return matches(path, allowed)


def folder_of(path):
    return next((folder for folder in ROOMS if path.startswith(folder + "/")), None)


def room_of(path):
    """The room that a file of ours lies in. Of several names it is the longest."""
    rooms = ROOMS[folder_of(path)]
    return max((room for room in rooms if path == room or path.startswith(room + "/")), key=len)


def ours(target, quoted):
    """The path of the file of ours that an include names. None = it is not ours."""
    # <cuda/std/...> is the toolkit's, "cuda/digest.h" is ours. A generated header has no room.
    if target.endswith("_generated.h"):
        return None
    path = "include/" + target if target.startswith("varve/") else target
    folder = folder_of(path)
    return path if folder and (quoted or folder != "cuda") else None


def faults_of_include(path, target, quoted, root):
    """What is wrong when the file `path` (relative to the root, one of ours) includes `target`."""
    folder = folder_of(path)
    if quoted and "/" not in target and (root / path).with_name(target).exists():
        yield "is not the full path from the root of the project"
    included = ours(target, quoted)
    if included is not None:
        below = folder_of(included)
        if below == folder:
            if FLOORS.index(room_of(included)) > FLOORS.index(room_of(path)):
                yield f"goes up: {room_of(included)} lies above {room_of(path)}"
        elif not FOLDERS_BELOW[folder] & {below, room_of(included), included}:
            yield f"goes up: {folder} may include {sorted(FOLDERS_BELOW[folder])}"
        brings_hooks = path in HOOKS or path == "include/varve/varve.h"
        if included in HOOKS and not brings_hooks and folder not in MAY_INCLUDE_HOOKS:
            yield "is of the hooks, which what is a store's may not need"
    elif target.split("/")[0] in OTHER_FOLDERS or (
        target.endswith("_generated.h") and folder == "include/varve"
    ):
        yield f"goes up: {folder} may include {sorted(FOLDERS_BELOW[folder])}"
    for patterns, allowed in BORDERS:
        if matches(target, patterns) and not may_include(path, allowed):
            yield f"is only for {' '.join(allowed)}"


def faults_of_names(path, text, words):
    """Line number and fault of each name that a private file puts into the namespace of users.

    `words` are those of the public headers.
    """

    def blank(found):
        return "\n" * found[0].count("\n")

    for block in PUBLIC_NAMESPACE.finditer(text):
        body = WITHOUT_NAME.sub(blank, block[1])
        is_header = path.endswith(".h")
        if is_header:
            body = FORWARD_DECLARATION.sub("", body)
        for found in DEFINES.finditer(body):
            if is_header or found[1] not in words:
                line = text.count("\n", 0, block.start(1)) + body.count("\n", 0, found.start()) + 1
                yield line, f"{found[1]} belongs in varve::internal: no public header declares it"


def public_words(root):
    """All words of the public headers' code, but the names that they have from varve::internal."""
    words = set()
    for header in (root / "include/varve").glob("*.h"):
        code = re.sub(r"//.*", "", header.read_text(encoding="utf-8"))
        code = re.sub(r"^namespace internal \{$.*?^\}|\binternal::\w+", "", code, flags=re.M | re.S)
        words.update(re.findall(r"\w+", code))
    return words


def includes_of(root, path):
    """Line number, target, and whether it is in quotes, of each include of a file."""
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(2), found.group(1) == '"'


def sources(root):
    return [
        file.relative_to(root).as_posix()
        for folder in ROOMS
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in SOURCE_SUFFIXES
    ]


def check(root):
    """The files of each room, and the list of faults."""
    rooms = collections.Counter({room: 0 for room in FLOORS})
    faults = []
    words = public_words(root)
    for path in sources(root):
        rooms[room_of(path)] += 1
        if not path.startswith(("include/", "examples/")):
            text = (root / path).read_text(encoding="utf-8")
            faults += [
                f"{path}:{line}: {fault}" for line, fault in faults_of_names(path, text, words)
            ]
        for number, target, quoted in includes_of(root, path):
            faults += [
                f"{path}:{number}: #include of {target} {fault}"
                for fault in faults_of_include(path, target, quoted, root)
            ]
    return rooms, faults


def missing_in_umbrella(root):
    """The public headers that varve/varve.h does not bring."""
    seen, todo = set(), ["include/varve/varve.h"]
    while todo:
        path = todo.pop()
        if path in seen or not (root / path).exists():
            continue
        seen.add(path)
        todo += [
            included
            for _, target, quoted in includes_of(root, path)
            if (included := ours(target, quoted)) is not None
        ]
    headers = {path for path in sources(root) if path.startswith("include/varve/")}
    return sorted(headers - seen - APART) if seen else []


def find_circles(root):
    """Pairs of rooms that reach each other by includes."""
    edges = collections.defaultdict(set)
    for path in sources(root):
        for _, target, quoted in includes_of(root, path):
            included = ours(target, quoted)
            if included is not None:
                edges[room_of(path)].add(room_of(included))

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for room in edges[todo.pop()] - seen:
                seen.add(room)
                todo.append(room)
        return seen

    return [
        (a, b)
        for i, a in enumerate(FLOORS)
        for b in FLOORS[i + 1 :]
        if b in reached(a) and a in reached(b)
    ]


# The members of a struct that describes a tensor by itself stand beside each other, in any order.
DTYPE_MEMBER = r"DType dtype\b[^;(]*;"
SHAPE_MEMBER = r"[\w:]+<[^;(]*> shape\b[^;(]*;"
BESIDE = r"(?:[ \t]*//.*)?\n(?:[ \t]*//.*\n)*[ \t]*"
DESCRIBES = re.compile(
    f"^[ \t]*(?:{DTYPE_MEMBER}{BESIDE}{SHAPE_MEMBER}|{SHAPE_MEMBER}{BESIDE}{DTYPE_MEMBER})", re.M
)
ON_SPEC = re.compile(r"^[ \t]*(?:struct|class) \w+(?: final)? : (?:public )?TensorSpec \{", re.M)


def count_descriptions(text):
    """The structs that describe a tensor by fields of their own, and those on TensorSpec."""
    return len(DESCRIBES.findall(text)), len(ON_SPEC.findall(text))


def counts(root):
    """What house.md counts: pairs of a name and a number."""
    files = sources(root)
    users = collections.defaultdict(set)
    private = collections.Counter()
    for path in files:
        for _, target, quoted in includes_of(root, path):
            included = ours(target, quoted)
            if included is None or included.startswith("include/"):
                continue
            own = pathlib.PurePosixPath(path).with_suffix("") == pathlib.PurePosixPath(
                included
            ).with_suffix("")
            if not own and not included.startswith("examples/"):
                users[included].add(path)
            private[folder_of(path), folder_of(included)] += 1
    texts = {path: (root / path).read_text(encoding="utf-8") for path in files}
    downcast = re.compile(
        r"(?:static|dynamic)_cast<(?:const )?\w*(?:Impl|GroupStore|ShardedReader|OwnCheckpointer)\s*[*&]"
    )
    yield (
        "private headers of store/ that trainer_hooks/ includes",
        private["trainer_hooks", "store"],
    )
    yield "private headers of store/ that cli/ includes", private["cli", "store"]
    yield "downcasts to hidden types", sum(len(downcast.findall(text)) for text in texts.values())
    yield (
        "internal headers",
        sum(
            path.endswith(".h") and not path.startswith(("include/", "examples/")) for path in files
        ),
    )
    yield "internal headers with one user", sum(len(paths) == 1 for paths in users.values())
    described = [count_descriptions(text) for text in texts.values()]
    yield "structs with dtype and shape of their own", sum(own for own, _ in described)
    yield "structs on TensorSpec", sum(based for _, based in described)
    yield "files", len(files)
    yield "files under 50 lines", sum(text.count("\n") < 50 for text in texts.values())


def main():
    root = pathlib.Path(sys.argv[1])
    rooms, faults = check(root)
    circles = find_circles(root)
    for number, room in enumerate(FLOORS, 1):
        print(f"{number:3} {room:24} {rooms[room]:4} files")
    faults += [f"{path} is not brought by varve/varve.h" for path in missing_in_umbrella(root)]
    for fault in faults:
        print(fault)
    for a, b in circles:
        print(f"{a} and {b} reach each other by includes")
    upward = sum(" goes up: " in fault for fault in faults)
    print(
        f"{sum(rooms.values())} files, {upward} upward includes, {len(circles)} circles, "
        f"{len(faults) - upward} other faults"
    )
    if "--counts" in sys.argv:
        for name, number in counts(root):
            print(f"{number:5} {name}")
    # A tree in which nothing was found to look at is a mistake of the caller.
    return 1 if faults or circles or not any(rooms.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
