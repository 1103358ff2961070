//! A process is killed in the middle of a call, and another process resumes the run: the part of the demo that needs
//! real processes.
//!
//! The program orders three things. The gate appends each order to its own file, which the demo only reads to count the
//! orders. The gate sleeps during the second order, and its process is killed there.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::limits::DEMO_WAIT_MS;
use cantrip_terminal::present::{BOLD, DIM, colour};

const SPELL: &str = "name = \"orders\"\ncrystal = \"program/orders.js\"\nmedium = \"javascript\"\n\
    [gates.order]\ncommand = [\"./order.sh\"]\nlabels = []\n\
    parameters = {type = \"object\", properties = {item = {type = \"string\"}}, required = [\"item\"]}\n[wards]\nmax_turns = 1\n";

const PROGRAM: &str = "var told = ['tea', 'milk', 'cake'].map(item => {\n  \
    try { order(item); return item; } catch (error) { return item + '?'; }\n});\ndone(told)\n";

const GATE: &str = "#!/bin/sh\nread -r asked\necho \"$asked\" >> orders.log\n\
    case \"$asked\" in *milk*) sleep 2;; esac\necho '{\"ordered\": true}'\n";

const STORE: &str = "sqlite:kept/loom.db";

/// Runs the demo. The error says what did not happen as expected.
pub(super) fn show_crash(text: &mut String) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let here = folder.path();
    for (name, content) in [("orders.toml", SPELL), ("orders.js", PROGRAM), ("order.sh", GATE)] {
        fs::write(here.join(name), content).map_err(|error| error.to_string())?;
    }
    executable(&here.join("order.sh"))?;
    let _ = writeln!(text, "{BOLD}Killed in the middle of a call{BOLD:#}");
    let _ = writeln!(text, "{DIM}Two processes, one after the other, on one SQLite file.{DIM:#}\n");

    let _ = writeln!(text, "  A program orders tea, milk and cake; its process is killed inside the second call");
    let mut first = own(here, &["cast", "orders.toml", "order", "--quiet", "--store", STORE])?;
    let began = Instant::now();
    while orders(here).len() < 2 {
        if began.elapsed() > Duration::from_millis(DEMO_WAIT_MS) {
            let _ = first.kill();
            return Err("the second order was never made".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    first.kill().and_then(|()| first.wait()).map_err(|error| error.to_string())?;
    let _ = writeln!(text, "    {DIM}killed (SIGKILL) after 2 orders, of which one is recorded as done{DIM:#}\n");

    let _ = writeln!(text, "  Another process resumes the run: cantrip run resume");
    let second = own(here, &["run", "resume", "--json", "--store", STORE])?;
    let output = second.wait_with_output().map_err(|error| error.to_string())?;
    let reply: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let Some(answer) = reply["data"].get("answer") else { return Err(reply["message"].to_string()) };
    let style = colour(cantrip_reply::ReplyType::Success);
    let _ = writeln!(text, "    {style}{:<8}{style:#} => {answer}", "Success");
    let _ = writeln!(
        text,
        "    {DIM}no record says whether the milk was ordered: the program gets `outcome unknown`, and nothing is \
         ordered twice{DIM:#}"
    );
    let made = orders(here);
    let counted: Vec<String> = ["tea", "milk", "cake"]
        .iter()
        .map(|item| format!("{item} {}", made.iter().filter(|line| line.contains(item)).count()))
        .collect();
    if made.len() != 3 {
        return Err(format!("{} orders were made", made.len()));
    }
    let _ = writeln!(text, "    orders that the gate received: {}\n", counted.join(", "));
    Ok(())
}

/// Returns the orders that the gate recorded.
fn orders(here: &Path) -> Vec<String> {
    let text = fs::read_to_string(here.join("orders.log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Starts another process of this program.
fn own(here: &Path, arguments: &[&str]) -> Result<std::process::Child, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(here).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    for variable in ["CANTRIP_CRYSTAL", "CANTRIP_STORE", "CANTRIP_LOG"] {
        command.env_remove(variable);
    }
    command.spawn().map_err(|error| error.to_string())
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<(), String> {
    Err("this part of the demo needs a shell".to_owned())
}
