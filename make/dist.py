# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A release: backstay-VERSION.tar.xz, which builds with no network, what is in it as CycloneDX, and SHA256SUMS.

    make/dist.py OUT            of the commit that is checked out; needs a network, or cargo's cache
    make/dist.py --validate BOM whether a file is CycloneDX, by cyclonedx-python-lib, which has its schema

The tarball has the files of the commit, vendor/ with all crates of Cargo.lock, and .cargo/config.toml, which says that
they are there, and which commit it is. Crates that no Linux needs (those of Windows are half of all bytes) are there by
name only: cargo wants to see what Cargo.lock names. One commit gives the same bytes, whoever makes it, where and when,
with one version of tar, xz and cargo.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
# What `make install` builds.
INSTALLED = ["backstay-c", "backstay-cli"]
CYCLONEDX = "1.6"
CONFIG = """# Written by make dist: crates are in vendor/, and no network is asked.
[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "vendor"

[net]
offline = true

[env]
BACKSTAY_COMMIT = "{commit}"
"""


def run(*words, cwd=ROOT, **more):
    done = subprocess.run([str(word) for word in words], cwd=cwd, check=False, text=True, capture_output=True, **more)
    if done.returncode != 0:
        raise SystemExit(f"dist: {' '.join(str(word) for word in words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def cargo(*words, cwd):
    return run(os.environ.get("CARGO", "cargo"), *words, cwd=cwd)


def metadata(tree, platform):
    return json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", platform, cwd=tree))


def lock(tree):
    """Packages of Cargo.lock by name and version."""
    packages = tomllib.loads((tree / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]): package for package in packages}


# ---- Vendored crates -------------------------------------------------------------------------------


def needed(tree):
    """Name and version of each package that some Linux needs."""
    found = set()
    for platform in PLATFORMS:
        known = metadata(tree, platform)
        ids = {node["id"] for node in known["resolve"]["nodes"]}
        found |= {(package["name"], package["version"]) for package in known["packages"] if package["id"] in ids}
    return found


def empty(crate):
    """Leaves of a crate its manifest, without what it would build, and an empty library."""
    manifest = (crate / "Cargo.toml").read_text()
    checksum = json.loads((crate / ".cargo-checksum.json").read_text())["package"]
    library = crate / tomllib.loads(manifest).get("lib", {}).get("path", "src/lib.rs")
    shutil.rmtree(crate)
    library.parent.mkdir(parents=True)
    library.write_text("")
    parts = re.split(r"^(?=\[)", manifest, flags=re.M)
    kept = [part for part in parts if not re.match(r"\[\[(bin|example|test|bench)\]\]", part)]
    text = re.sub(r'^build = ".*$', "build = false", "".join(kept), flags=re.M)
    (crate / "Cargo.toml").write_text(text)
    (crate / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": checksum}))


def vendor(tree):
    """Fills vendor/; names of the crates that are there by name only."""
    if others := {package.get("source") for package in lock(tree).values()} - {None, CRATES_IO}:
        raise SystemExit(f"dist: crates come from {others}, not from crates.io")
    cargo("vendor", "--locked", "--versioned-dirs", "--quiet", "vendor", cwd=tree)
    wanted = needed(tree)
    emptied = []
    for crate in sorted((tree / "vendor").iterdir()):
        package = tomllib.loads((crate / "Cargo.toml").read_text())["package"]
        if (package["name"], package["version"]) not in wanted:
            empty(crate)
            emptied.append(crate.name)
    return emptied


def resolves(tree):
    """Fails where cargo does not find all it needs in the tree, without a cache."""
    with tempfile.TemporaryDirectory() as home:
        rustup = os.environ.get("RUSTUP_HOME", str(pathlib.Path.home() / ".rustup"))
        run(os.environ.get("CARGO", "cargo"), "metadata", "--locked", "--offline", "--format-version", "1", cwd=tree,
            env={**os.environ, "CARGO_HOME": home, "RUSTUP_HOME": rustup})


# ---- The tarball -----------------------------------------------------------------------------------


def pack(folder, name, seconds, out):
    """The folder as OUT: sorted, of nobody, of one time; modes say only what git knows."""
    tar = subprocess.Popen(
        ["tar", "--create", "--format=ustar", "--sort=name", f"--mtime=@{seconds}", "--owner=0", "--group=0", "--numeric-owner",
         "--mode=u+rw,go-w,a+rX,a-s", "--directory", folder, name], stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"})
    with open(out, "wb") as file:
        subprocess.run(["xz", "--threads=1", "-6", "--stdout"], stdin=tar.stdout, stdout=file, check=True)
    if tar.wait() != 0:
        raise SystemExit("dist: tar failed")


def one_umask(folder):
    """Files are as git has them, whatever umask they were made under."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            is_program = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_program else 0o644)


# ---- What is in it ---------------------------------------------------------------------------------


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, locked):
    found = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"],
             "scope": "required", "purl": purl(package)}
    if package["description"]:
        found["description"] = " ".join(package["description"].split())
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = locked.get((package["name"], package["version"]), {}).get("checksum")
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def bill(tree, version, commit, seconds):
    """CycloneDX of what is built into the library and the command, build scripts and macros included, tests not."""
    known, locked = metadata(tree, PLATFORMS[0]), lock(tree)
    packages = {package["id"]: package for package in known["packages"]}
    nodes = {node["id"]: node for node in known["resolve"]["nodes"]}

    def uses(id_):
        kinds = ((dep["pkg"], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in nodes[id_]["deps"])
        return sorted(pkg for pkg, of in kinds if of & {None, "build"})

    roots = [id_ for id_, package in packages.items() if package["name"] in INSTALLED]
    reached, todo = set(), list(roots)
    while todo:
        id_ = todo.pop()
        if id_ not in reached:
            reached.add(id_)
            todo += uses(id_)
    ref = f"pkg:generic/backstay@{version}"
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{CYCLONEDX}.schema.json", "bomFormat": "CycloneDX", "specVersion": CYCLONEDX,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'backstay {version} {commit}')}", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "component": {"type": "application", "bom-ref": ref, "name": "backstay", "version": version,
                          "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                          "properties": [{"name": "backstay:commit", "value": commit}]}},
        "components": [component(packages[id_], locked) for id_ in sorted(reached, key=lambda id_: purl(packages[id_]))],
        "dependencies": [{"ref": ref, "dependsOn": sorted(purl(packages[id_]) for id_ in roots)},
                         *({"ref": purl(packages[id_]), "dependsOn": sorted({purl(packages[used]) for used in uses(id_)})}
                           for id_ in sorted(reached, key=lambda id_: purl(packages[id_])))],
    }


def validate(path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(pathlib.Path(path).read_text())
    if wrong:
        raise SystemExit(f"{path} is no CycloneDX {CYCLONEDX}: {wrong}")
    found = json.loads(pathlib.Path(path).read_text())
    refs = {found["metadata"]["component"]["bom-ref"]} | {part["bom-ref"] for part in found["components"]}
    for entry in found["dependencies"]:
        if missing := {entry["ref"], *entry["dependsOn"]} - refs:
            raise SystemExit(f"{path}: nothing is said of {missing}")
    print(f"{path}: CycloneDX {CYCLONEDX}, {len(found['components'])} components")


# ---- All of it -------------------------------------------------------------------------------------


def make(out):
    if run("git", "status", "--porcelain", "--untracked-files=no").strip():
        print("dist: what is not committed is not in it")
    commit = run("git", "rev-parse", "HEAD").strip()
    seconds = int(run("git", "show", "--no-patch", "--format=%ct", "HEAD"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="backstay-dist-") as folder:
        work = pathlib.Path(folder)
        archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        name = f"backstay-{version}"
        tree = work / name
        tree.mkdir()
        subprocess.run(["tar", "--extract", "--directory", tree], input=archive, check=True)
        emptied = vendor(tree)
        bom = bill(tree, version, commit, seconds)
        (tree / ".cargo").mkdir(exist_ok=True)
        (tree / ".cargo/config.toml").write_text(CONFIG.format(commit=commit[:12]))
        resolves(tree)
        one_umask(tree)
        files = {f"{name}.tar.xz": None, f"{name}.cdx.json": json.dumps(bom, indent=1, ensure_ascii=False) + "\n"}
        pack(work, name, seconds, out / f"{name}.tar.xz")
        (out / f"{name}.cdx.json").write_text(files[f"{name}.cdx.json"])
    sums = "".join(f"{hashlib.sha256((out / file).read_bytes()).hexdigest()}  {file}\n" for file in sorted(files))
    (out / "SHA256SUMS").write_text(sums)
    size = (out / f"{name}.tar.xz").stat().st_size
    print(f"{out / name}.tar.xz: {size / 1e6:.1f} MB, commit {commit[:12]}; {len(emptied)} crates by name only, "
          f"{len(bom['components'])} in the list")


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "--validate":
        validate(arguments[1])
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        make(pathlib.Path(arguments[0]).resolve())
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
