//! `cantrip completions`: prints the completion script of a shell.

use cantrip_reply::{Reply, ReplyBuilder, codes};
use clap_complete::{Shell, generate};
use serde_json::json;

/// Print a completion script for your shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  source <(cantrip completions bash)\n  \
                        cantrip completions zsh > ~/.zfunc/_cantrip\n  \
                        cantrip completions fish > ~/.config/fish/completions/cantrip.fish")]
pub(crate) struct Completions {
    /// The shell to print the script for.
    shell: Shell,
}

impl Completions {
    pub(crate) fn script(&self, command: &mut clap::Command) -> String {
        let mut script = Vec::new();
        generate(self.shell, command, "cantrip", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }

    pub(crate) fn reply(&self, rb: ReplyBuilder, script: &str) -> Reply {
        rb.success(codes::ok("completions").data(json!({"shell": self.shell.to_string(), "script": script})))
    }
}
