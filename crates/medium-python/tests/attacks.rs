//! Sandbox escapes that work in other Pythons: here each is an error, and nothing happens outside.

use crate::support;

use support::World;

/// Programs that must end in an error of this name.
const REFUSED: &[(&str, &str)] = &[
    // Files.
    ("open('/etc/passwd')", "PermissionError"),
    ("open('/tmp/cantrip-was-here', 'w')", "PermissionError"),
    ("open('/etc/passwd', 'rb').read()", "PermissionError"),
    ("with open('/etc/passwd') as f: f.read()", "PermissionError"),
    ("from pathlib import Path\nPath('/etc/passwd').read_text()", "PermissionError"),
    ("from pathlib import Path\nPath('/etc/passwd').read_bytes()", "PermissionError"),
    ("from pathlib import Path\nPath('/tmp/cantrip-was-here').write_text('x')", "PermissionError"),
    ("from pathlib import Path\nPath('/etc').exists()", "PermissionError"),
    ("from pathlib import Path\nlist(Path('/').iterdir())", "PermissionError"),
    ("from pathlib import Path\nPath('.').resolve()", "PermissionError"),
    ("from pathlib import Path\nPath('/tmp/cantrip-was-here').mkdir()", "PermissionError"),
    ("from pathlib import Path\nPath('/etc/passwd').unlink()", "PermissionError"),
    ("from pathlib import Path\nPath('/etc/passwd').rename('/tmp/x')", "PermissionError"),
    ("from pathlib import Path\nPath('/etc/passwd').stat()", "PermissionError"),
    // The environment, and the process.
    ("import os\nos.getenv('PATH')", "PermissionError"),
    ("import os\nos.environ['PATH']", "PermissionError"),
    ("import os\nos.system('id')", "AttributeError"),
    ("import os\nos.popen('id')", "AttributeError"),
    ("import os\nos.fork()", "AttributeError"),
    ("import os\nos._exit(0)", "AttributeError"),
    ("import os\nos.kill(1, 9)", "AttributeError"),
    ("import sys\nsys.modules", "AttributeError"),
    ("import sys\nsys._getframe()", "AttributeError"),
    ("import sys\nsys.settrace(print)", "AttributeError"),
    ("import sys\nsys.setrecursionlimit(10 ** 9)", "AttributeError"),
    ("import sys\nsys.path", "AttributeError"),
    // Modules.
    ("import subprocess", "ModuleNotFoundError"),
    ("import socket", "ModuleNotFoundError"),
    ("import urllib.request", "ModuleNotFoundError"),
    ("import http.client", "ModuleNotFoundError"),
    ("import ctypes", "ModuleNotFoundError"),
    ("import importlib", "ModuleNotFoundError"),
    ("import builtins", "ModuleNotFoundError"),
    ("import inspect", "ModuleNotFoundError"),
    ("import gc", "ModuleNotFoundError"),
    ("import pickle", "ModuleNotFoundError"),
    ("import marshal", "ModuleNotFoundError"),
    ("import threading", "ModuleNotFoundError"),
    ("import multiprocessing", "ModuleNotFoundError"),
    ("import signal", "ModuleNotFoundError"),
    ("import resource", "ModuleNotFoundError"),
    ("import io", "ModuleNotFoundError"),
    ("import shutil", "ModuleNotFoundError"),
    ("import tempfile", "ModuleNotFoundError"),
    ("import random", "ModuleNotFoundError"),
    ("import time", "ModuleNotFoundError"),
    ("from . import x", "ImportError"),
    ("from os import system", "ImportError"),
    ("import os.path as p\np.exists('/')", "ModuleNotFoundError"),
    // Code from a text.
    ("eval('1')", "NameError"),
    ("exec('x = 1')", "NameError"),
    ("compile('1', '', 'eval')", "NameError"),
    ("__import__('os')", "NameError"),
    ("__builtins__", "NameError"),
    ("__loader__", "NameError"),
    ("globals()", "NameError"),
    ("locals()", "NameError"),
    ("vars()", "NameError"),
    ("dir()", "NameError"),
    ("breakpoint()", "NameError"),
    ("input()", "NameError"),
    ("help()", "NameError"),
    ("memoryview(b'x')", "NameError"),
    ("delattr(1, 'x')", "NameError"),
    // Attempts to reach everything from one value.
    ("''.__class__", "AttributeError"),
    ("().__class__.__bases__[0].__subclasses__()", "AttributeError"),
    ("[].__class__.__mro__", "AttributeError"),
    ("type(1).__subclasses__()", "AttributeError"),
    ("type(1).__mro__", "AttributeError"),
    ("type(1).__bases__", "AttributeError"),
    ("object.__subclasses__()", "AttributeError"),
    ("getattr('', '__class__')", "AttributeError"),
    ("getattr('', '__cla' + 'ss__')", "AttributeError"),
    ("(lambda: 1).__globals__", "AttributeError"),
    ("(lambda: 1).__code__", "AttributeError"),
    ("(lambda: 1).__closure__", "AttributeError"),
    ("def f(): pass\nf.__globals__", "AttributeError"),
    ("def f(): pass\nf.__builtins__", "AttributeError"),
    ("print.__self__", "AttributeError"),
    ("len.__self__", "AttributeError"),
    ("give.__globals__", "AttributeError"),
    ("[].append.__self__", "AttributeError"),
    ("'{0.__class__}'.format(1)", "AttributeError"),
    ("'{0.__class__.__init__.__globals__}'.format(1)", "AttributeError"),
    ("'{x.__class__}'.format(x=1)", "AttributeError"),
    ("f'{(1).__class__}'", "AttributeError"),
    ("class C: pass\nC.__subclasses__()", "AttributeError"),
    ("class C: pass\nC().__class__.__mro__", "AttributeError"),
    ("class C: pass\n'{0.__init__.__globals__}'.format(C())", "AttributeError"),
    ("try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame", "AttributeError"),
    ("try:\n    1 / 0\nexcept Exception as e:\n    e.__context__.__traceback__", "AttributeError"),
    ("(x for x in [1]).gi_frame", "AttributeError"),
    ("async def f(): pass\nf().cr_frame", "AttributeError"),
    ("import json\njson.__loader__", "AttributeError"),
    ("import json\njson.decoder", "AttributeError"),
    ("import datetime\ndatetime.sys", "AttributeError"),
    ("import re\nre.sys", "AttributeError"),
    ("import functools\nfunctools.reduce.__globals__", "AttributeError"),
    ("class M(type): pass", "NotImplementedError"),
    ("class C(metaclass=type): pass", "NotImplementedError"),
    ("def g():\n    yield 1", "NotImplementedError"),
];

#[tokio::test]
async fn every_known_way_out_is_an_error_and_the_sandbox_lives_on() {
    let mut world = World::new();
    world.run("kept = 'kept'").await;
    let mut unlike = Vec::new();
    for (attack, name) in REFUSED {
        let output = world.run(&format!("before = 1\n{attack}")).await;
        match output.error {
            Some(error) if error.name == *name => {}
            found => unlike.push(format!("{attack:?}: {found:?} {:?}", output.value)),
        }
        assert_eq!(world.value("kept").await, "'kept'", "{attack}");
    }
    assert!(unlike.is_empty(), "{}", unlike.join("\n"));
    assert_eq!(world.calls, [], "no gate was called");
    assert!(!std::path::Path::new("/tmp/cantrip-was-here").exists());
}

#[tokio::test]
async fn a_refusal_of_the_outside_says_what_is_there_instead() {
    let mut world = World::new();
    let (_, message) = world.error("open('/etc/passwd')").await;
    assert_eq!(message, "open is refused: only gates reach outside");
    let (_, message) = world.error("import os\nos.getenv('HOME')").await;
    assert_eq!(message, "os.getenv is refused: only gates reach outside");
    let caught = "try:\n    open('x')\nexcept OSError:\n    'caught'\n";
    assert_eq!(world.run(caught).await.error, None);
}

#[tokio::test]
async fn what_a_program_names_is_never_taken_for_a_gate_of_another() {
    let mut world = World::new();
    for program in ["not_a_gate(1)", "done_(1)", "Done(1)", "do\u{300}ne(1)", "give.__call__(1)", "'give'(1)"] {
        assert!(world.run(program).await.error.is_some(), "{program}");
    }
    assert_eq!(world.calls, []);
}
