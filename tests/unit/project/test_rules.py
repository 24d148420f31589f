"""Rules of ARCHITECTURE.md that no linter knows, checked on the syntax of the modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqspark.protocol.codes import RequestCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import merged
from mqspark.protocol.session import Session
from mqspark.record.recordlayout import HEADS
from tests.support.sources import PACKAGES, ROOT, STORE, Module, module, modules
from tests.unit.project.modules_list import lines

# --- the store's way to the disk -------------------------------------------------------------------------------

EVERYTHING = frozenset({"*"})
BESIDE_THE_FILE_LAYER = {
    "disk/files.py": (EVERYTHING, "is the file layer"),
    "disk/kernelsync.py": (EVERYTHING, "syncs the file layer's descriptors in the kernel; owns an eventfd"),
    "disk/filesystemsync.py": (
        EVERYTHING,
        "syncs the file system of the file layer's files; owns a descriptor",
    ),
    "disk/cuts.py": (
        EVERYTHING,
        "maps files for readers in other processes, which a broker may cut meanwhile",
    ),
    "disk/trusted.py": (EVERYTHING, "opens what a reader in another process may believe"),
    "tools/reader.py": (EVERYTHING, "reads a store directory from another process"),
    "tools/offlinestore.py": (EVERYTHING, "reads a directory that no broker works on"),
    "tools/fsck.py": (EVERYTHING, "works on a directory without a broker"),
    "tools/remake.py": (EVERYTHING, "works on a directory without a broker"),
    "tools/backup.py": (EVERYTHING, "reads a store directory from another process, and writes elsewhere"),
    "tools/backupmanifest.py": (EVERYTHING, "reads a directory that no broker works on"),
    "tools/restore.py": (EVERYTHING, "works on a directory without a broker"),
    "tools/compactionfiles.py": (EVERYTHING, "works on a directory without a broker"),
    "recovery/rebuild.py": (
        frozenset({"ScanManifest", "scan_segment", "_QueueBuilder", "fetch_keys", "build_index_file"}),
        "the files between the steps of a job, in a directory of their own",
    ),
}
"""Modules of the store, and what of each, that reach the disk without the file layer, and why. A broker runs none of
them but those of ``disk/``."""

MODULES_OF_FILES = frozenset({"shutil", "tempfile", "fcntl", "io", "glob", "fileinput"})
PURE_OF_OS = frozenset(
    {"environ", "fspath", "strerror", "getpid", "sep", "pathsep", "cpu_count", "sysconf", "PathLike", "path"}
)
PURE_OF_OS_PATH = frozenset(
    {"join", "dirname", "basename", "split", "splitext", "normpath", "isabs", "commonpath"}
)
OF_NUMPY = frozenset({"fromfile", "memmap", "load", "save", "savez", "loadtxt", "savetxt"})
PATH_METHODS = """read_bytes read_text write_bytes write_text iterdir glob rglob walk exists is_file is_dir is_symlink
stat lstat unlink rmdir mkdir touch chmod symlink_to hardlink_to readlink resolve samefile tofile"""
OF_PATHS = frozenset(PATH_METHODS.split())


def reaches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where the disk is reached without the file layer."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                yield node.lineno, "open()"
            case ast.Call(func=ast.Attribute(value=value, attr="open"), args=args, keywords=keywords) if (
                is_mode(args) or any(word.arg in ("mode", "buffering", "opener") for word in keywords)
            ):
                yield node.lineno, f"{ast.unparse(value)}.open()"
            case ast.Call(func=ast.Attribute(value=value, attr="replace"), args=[_], keywords=[]):
                yield node.lineno, f"{ast.unparse(value)}.replace()"
            case ast.Attribute(value=ast.Name(id="os"), attr=attr) if (
                attr not in PURE_OF_OS and not attr.startswith(("O_", "SEEK_"))
            ):
                yield node.lineno, f"os.{attr}"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attr) if (
                attr not in PURE_OF_OS_PATH
            ):
                yield node.lineno, f"os.path.{attr}"
            case ast.Attribute(value=ast.Name(id=module), attr=attr) if (
                module in MODULES_OF_FILES
                or (module in ("np", "numpy") and attr in OF_NUMPY)
                or (module, attr) == ("mmap", "mmap")
            ) and not is_annotation(tree, node):
                yield node.lineno, f"{module}.{attr}"
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in OF_PATHS:
                yield node.lineno, f"{ast.unparse(value)}.{attr}()"
            case ast.ImportFrom(module="os" | "os.path" | "shutil" | "fcntl" | "io" | "tempfile" as module):
                yield node.lineno, f"from {module} import"


def is_mode(args: list[ast.expr]) -> bool:
    match args:
        case [ast.Constant(value=str()), *_]:
            return True
    return False


def is_annotation(tree: ast.AST, node: ast.AST) -> bool:
    """Whether ``mmap.mmap`` only says what something is: a call of it makes a map."""
    return ast.unparse(node) == "mmap.mmap" and not any(
        isinstance(each, ast.Call) and each.func is node for each in ast.walk(tree)
    )


def broken(tree: ast.Module, allowed: frozenset[str]) -> list[str]:
    found = []
    for statement in tree.body:
        name = getattr(statement, "name", "")
        if not allowed & {"*", name}:
            found += [f"{line}: {what}" for line, what in reaches(statement)]
    return found


def test_the_store_reaches_the_disk_through_its_file_layer_only() -> None:
    found = []
    for each in modules(STORE):
        allowed, _ = BESIDE_THE_FILE_LAYER.get(each.name.removeprefix(f"{STORE}/"), (frozenset(), ""))
        found += [f"{each.name}:{place}" for place in broken(each.tree, allowed)]
    assert found == []


def test_every_exception_is_one() -> None:
    for name, (allowed, reason) in BESIDE_THE_FILE_LAYER.items():
        tree = module(ROOT / STORE / name).tree
        assert reason
        for each in allowed:
            parts = [node for node in tree.body if each in ("*", getattr(node, "name", ""))]
            assert any(list(reaches(part)) for part in parts), f"{name} {each} needs no exception any more"


@pytest.mark.parametrize(
    "line",
    [
        "with open(path, 'rb') as file: pass",
        "os.listdir(path)",
        "os.path.isdir(path)",
        "shutil.rmtree(path)",
        "path.read_bytes()",
        "for each in path.iterdir(): pass",
        "path.open('wb')",
        "temporary.replace(path)",
        "mmap.mmap(fd, 0)",
        "np.fromfile(file, dtype)",
        "from os import replace",
    ],
)
def test_ways_around_the_file_layer_are_seen(line: str) -> None:
    assert broken(ast.parse(line), frozenset())
    assert broken(ast.parse(f"def job():\n    {line}"), frozenset({"job"})) == []


@pytest.mark.parametrize(
    "line",
    [
        "files.open(path, create=True)",
        "files.rename(old, new)",
        "os.path.join(a, b)",
        "name.replace('a', 'b')",
        "self.open(end, clean=True)",
        "view: mmap.mmap",
    ],
)
def test_what_is_no_way_around_it_is_not(line: str) -> None:
    assert broken(ast.parse(line), frozenset()) == []


# --- one handler for a request code ----------------------------------------------------------------------------


def answer(session: Session, command: Command) -> bytes | None:
    return None


def test_two_handlers_for_one_request_code_are_an_error_at_start() -> None:
    first = {int(RequestCode.SEND_MESSAGE): answer}
    assert merged(first, {RequestCode.PULL_MESSAGE: answer}) == {10: answer, 11: answer}
    with pytest.raises(ValueError, match=r"two handlers for request code .*10"):
        merged(first, {RequestCode.PULL_MESSAGE: answer}, {RequestCode.SEND_MESSAGE: answer})


def tables_of_handlers() -> Iterator[tuple[str, ast.Dict]]:
    for each in modules("mqspark/broker", "mqspark/namesrv", "mqspark/controller"):
        for node in each.nodes:
            match node:
                case ast.AnnAssign(annotation=note, value=ast.Dict() as table) if (
                    ast.unparse(note) == "dict[int, Handler]"
                ):
                    yield each.name, table


def test_no_table_of_handlers_has_a_request_code_twice_or_takes_another_over() -> None:
    """What Python does with a key that is there twice: the last one wins, and nobody is told."""
    tables = list(tables_of_handlers())
    assert len(tables) > 15
    for path, table in tables:
        assert None not in table.keys, f"{path}: tables are put together by dispatch.merged"
        codes = [getattr(RequestCode, key.attr) for key in table.keys if isinstance(key, ast.Attribute)]
        assert len(codes) == len(table.keys), path
        assert len(set(codes)) == len(codes), path


# --- nothing that nobody uses ----------------------------------------------------------------------------------

CALLED_BY_OTHERS = {
    "asyncio": "eof_received pause_writing resume_writing",
    "pytest": "pytest_configure",
    "click": "format_commands",
    "uvicorn": "send_400_response",
    "logging": "handleError",
    "Spark": """getDefaultReadLimit onQueryIdle onQueryProgress onQueryStarted onQueryTerminated
    prepareForTriggerAvailableNow reportLatestOffset streamReader
    streamWriter""",
    "DuckDB and pyarrow, of a dataset": "scanner",
    "users of work queues": "map_arrow transform",
    "tests, to whom it is a tool": "mapped_segments",
    "programs that test with mqspark.testing": """transaction_producer push_consumer pop_consumer lite_pull_consumer
    shut_down add_broker apps""",
}
"""Names that nothing in the packages calls, and who does."""
TRANSPARENT = frozenset(
    {"property", "staticmethod", "classmethod", "dataclass", "cached_property", "cache", "override"}
)
"""Decorators that register nothing anywhere."""

Definition = tuple[str, int, str]


def definitions(each: Module) -> Iterator[Definition]:
    """Functions, methods, classes and constants of a module; fields of classes are formats."""
    for node in each.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            decorators = {
                ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
                for decorator in node.decorator_list
            }
            if decorators <= TRANSPARENT and not node.name.startswith("__"):
                yield each.name, node.lineno, node.name
    for node in each.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=constant)]) | ast.AnnAssign(target=ast.Name(id=constant)):
                if not constant.startswith("__"):
                    yield each.name, node.lineno, constant


def uses(each: Module) -> Iterator[str]:
    """Names that a module reads. What it imports it has to use, or the linter says so; a name in quotes may be a
    forward reference, an entry of a lazy table, or getattr's."""
    listed = {
        id(part)
        for node in each.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for part in ast.walk(node)
    }
    for node in each.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                yield name
            case ast.ImportFrom(names=names):  # what it gives out again
                yield from (each.name for each in names if each.name == each.asname)
            case ast.Constant(value=str() as text) if id(node) not in listed and len(text) < 200:
                yield from re.findall(r"\w+", text)


def test_nothing_is_there_that_nobody_uses() -> None:
    used = {name for each in modules() for name in uses(each)}
    excused = {name for names in CALLED_BY_OTHERS.values() for name in names.split()}
    found = [definition for each in modules() for definition in definitions(each)]
    known = used | excused
    unused = [f"{path}:{line}: {name}" for path, line, name in found if name not in known]
    assert unused == [], "\n".join(["nobody uses:", *unused])
    needless = excused & used | excused - {name for _, _, name in found}
    assert not needless, "these need no excuse"


READ_BY_OTHERS = {
    "stalls": "tests, for which a log line is too rare",
    "suppressed": "tests, for which a log line is too rare",
    "_done_callbacks": "concurrent.futures",
    "_receive_buffer": "h11",
}
"""Attributes that objects set on themselves and nothing in the packages reads, and who does."""


def test_every_attribute_is_read() -> None:
    """A counter that only counts costs each request a step."""
    attributes = [node for each in modules() for node in each.nodes if isinstance(node, ast.Attribute)]
    own = {
        node.attr
        for node in attributes
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    assert own - {node.attr for node in attributes if isinstance(node.ctx, ast.Load)} == set(READ_BY_OTHERS)


# --- modules and packages --------------------------------------------------------------------------------------


def test_every_module_begins_with_what_it_is() -> None:
    """A sentence: the tree of modules is the list of what there is."""
    for each in modules():
        first = " ".join((ast.get_docstring(each.tree) or "").partition("\n\n")[0].split())
        assert re.match(r".*?[^.][.:](\s|$)", first), f"{each.name} begins with no sentence"


def test_each_text_begins_with_what_it_describes() -> None:
    """Not with "Of": of what comes first."""
    begins = re.compile(r'^ *(?:"""|# )Of\b', re.MULTILINE)
    texts = [path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in texts if begins.search(path.read_text())] == []


def test_the_list_of_modules_has_each_with_its_first_sentence_and_its_classes() -> None:
    found = dict(line.split(": ", 1) for line in lines())
    assert list(found) == [each.name for each in modules()]
    histogram = found["mqspark/base/histogram.py"]
    assert histogram.startswith("Counts of numbers by class, as Prometheus's histograms are. [Histogram] <- ")
    assert " mqspark/broker/stats" in histogram
    assert "<-" not in found["mqspark/broker/pop/waking.py"]


PACKAGE_FILES = sorted(path for each in PACKAGES for path in (ROOT / each).rglob("__init__.py"))


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_every_package_says_what_is_in_it_and_what_it_must_not_know(path: Path) -> None:
    docstring = module(path).docstring
    assert docstring.endswith(".")
    if len(path.relative_to(ROOT).parts) > 3 or path.parent.name in (
        "namesrv",
        "controller",
        "filter",
        "protocol",
    ):
        assert re.search(r"[Mm]ust not (know|import)|[Kk]nows no", docstring)


# --- one name, one thing -------------------------------------------------------------------------------------------

MODULES_OF_ONE_NAME = {
    "config": "the settings of the room that it is in",
    "registration": "a broker's topics as a name server gets them: the body, and who makes it",
}
"""Base names that several modules have, and the one thing that they mean."""
BLOCKING = "AdminClient LitePullConsumer PopConsumer Producer PushConsumer TransactionProducer"
"""Classes of ``mqspark.aio`` and of ``mqspark``: the same object, awaited or blocking."""


def places_by_name(pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that are there more than once, and where."""
    places: dict[str, list[str]] = {}
    for name, place in pairs:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def classes(each: Module) -> Iterator[tuple[str, str]]:
    for node in each.nodes:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{each.name}:{node.lineno}"


def plain_modules() -> list[Module]:
    return [each for each in modules() if each.path.name != "__init__.py"]


def test_no_two_modules_have_one_name() -> None:
    found = places_by_name((each.path.stem, each.name) for each in plain_modules())
    assert {name: at for name, at in found.items() if name not in MODULES_OF_ONE_NAME} == {}
    assert sorted(found) == sorted(MODULES_OF_ONE_NAME), "these need no exception any more"


def test_no_two_classes_have_one_name() -> None:
    found = places_by_name(made for each in plain_modules() for made in classes(each))
    allowed = BLOCKING.split()
    assert {name: at for name, at in found.items() if name not in allowed} == {}
    for name in allowed:
        first, second = found[name]
        assert {"sync" in Path(at).parts for at in (first, second)} == {True, False}, (first, second)


# --- state has one writer --------------------------------------------------------------------------------------

OWNERS = {
    "mqspark/store/log/commitlog.py": "position written durable pending room_end",
    "mqspark/store/queue/consumequeue.py": "next_offset max_offset reserved_end entries",
    "mqspark/store/queue/batchqueue.py": "next_offset",
}
"""State of the log and of the queues, and the modules whose classes it belongs to."""
OWNED = frozenset(name for names in OWNERS.values() for name in names.split())
CHANGES = frozenset({"append", "extend", "clear", "pop", "insert", "remove"})


def writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where an attribute of another object than ``self`` is assigned or changed."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                is_write = True
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr=name), attr=change)):
                is_write = change in CHANGES
            case _:
                continue
        if is_write and name in OWNED and ast.unparse(owner) != "self":
            yield node.lineno, ast.unparse(node)


NAMESAKES = frozenset({"checkpoint.", "self.report.", "self._found.", "chunk."})
"""Objects with a field of the same name that is a result, not state."""


def others_state(tree: ast.Module) -> list[str]:
    """Writes of state that belongs to the log or to a queue."""
    found = writes(tree)
    return [f"{line}: {what}" for line, what in found if not what.startswith(tuple(NAMESAKES))]


def test_nobody_else_moves_the_log_or_a_queue() -> None:
    found = {each.name: others_state(each.tree) for each in modules(STORE)}
    assert {name: places for name, places in found.items() if places} == {}


def test_every_owner_has_its_state() -> None:
    for path, names in OWNERS.items():
        assert all(f"self.{name}" in (ROOT / path).read_text() for name in names.split()), path


@pytest.mark.parametrize(
    "line",
    [
        "log.position = end",
        "self._log.position += size",
        "queue.next_offset = a.position = 3",
        "log.pending.append(data)",
        "del log.room_end",
        "queue.array.next_offset += 1",
    ],
)
def test_writes_of_others_are_seen(line: str) -> None:
    assert others_state(ast.parse(line))


@pytest.mark.parametrize("line", ["self.position = end", "end = log.position", "log.append(parts, 3)"])
def test_what_writes_nothing_of_others_is_not(line: str) -> None:
    assert others_state(ast.parse(line)) == []


HEAD_FIELDS = len(HEADS[0].unpack(bytes(HEADS[0].size)))


def packed_heads(each: Module) -> Iterator[str]:
    """The functions that pack as many values as the head of a record has."""
    if not any(isinstance(node, ast.Call) and len(node.args) >= HEAD_FIELDS for node in each.nodes):
        return
    for function in each.nodes:
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=packer, args=args) if (
                        len(args) >= HEAD_FIELDS and "pack" in ast.unparse(packer).lower()
                    ):
                        yield function.name


def test_one_function_packs_the_head_of_a_record() -> None:
    found = [(each.path.name, name) for each in modules() for name in packed_heads(each)]
    assert found == [("record.py", "pack_head")]
