//! `cantrip mcp`: an MCP server on standard input and output.

use std::process::ExitCode;
use std::sync::Arc;

use cantrip::loom::Actor;
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_serve::SpellHost;
use cantrip_serve::mcp::McpServer;

use cantrip_local::runtime::runtime;
use cantrip_local::spell_catalog::FileSpellCatalog;
use cantrip_local::store::{self, Access};
use cantrip_terminal::interrupt;
use cantrip_terminal::present::Present;
use cantrip_terminal::tap::Tap;

/// Run an MCP server (Model Context Protocol) for spells and looms, over standard input and output.
///
/// The client starts it. Only protocol messages go to standard output. Its tools cast spells, make predicts, and read
/// and fork looms; threads and receipts are resources.
///
/// It prints nothing until the client sends a request. An idle process is healthy: it waits for the client, and ends
/// when its input is closed. `cantrip doctor` checks that it answers.
#[derive(Debug, clap::Args)]
#[command(after_help = "In claude_desktop_config.json:\n  \
                        \"mcpServers\": {\"cantrip\": {\"command\": \"cantrip\", \"args\": [\"mcp\"]}}\n\n\
                        Examples:\n  cantrip mcp --store sqlite:team.db")]
pub(crate) struct Mcp {
    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Log each message on standard error: its direction, method, id and size, but not its content.
    #[arg(long)]
    debug: bool,
}

impl Mcp {
    pub(crate) async fn run(&self, guard: &Guard) -> ExitCode {
        // Standard output carries the protocol, so errors before serving begins go to standard error.
        let present = Present { json: false };
        let (server, host) = match self.server(guard) {
            Ok(server) => server,
            Err(refusal) => return present.refuse(guard, "mcp", refusal).await,
        };
        let served = tokio::select! {
            served = server.serve(
                Tap::incoming(tokio::io::stdin(), self.debug),
                Tap::outgoing(tokio::io::stdout(), self.debug),
            ) => served.map_err(|error| error.to_string()),
            () = interrupt::wait_for_end_signal() => {
                host.local_service().park_all().await;
                Ok(())
            }
        };
        let guarded = guard.call(Call::surface("mcp"), |rb| async {
            match served {
                Ok(()) => rb.success(codes::ok("mcp")),
                Err(cause) => rb.error(codes::unreachable("the client", cause)),
            }
        });
        ExitCode::from(present.show_reply(guarded.await, || {}))
    }

    fn server(&self, guard: &Guard) -> Result<(McpServer, SpellHost), Refusal> {
        let store = Arc::new(store::open_here(self.store.as_deref(), Access::Write)?);
        let runtime = runtime(&store, guard).with_approvals(true);
        let host = SpellHost::open(runtime, FileSpellCatalog::new(store)?);
        let owner = Actor::new("local").map_err(|_| codes::crash())?;
        Ok((McpServer::new(host.clone(), owner), host))
    }
}
