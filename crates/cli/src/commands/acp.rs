//! `cantrip acp`: an agent for editors, on standard input and output.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip::canon::RunId;
use cantrip::loom::Actor;
use cantrip_acp::{Agent, EditorUser, SessionRecord, SessionStore};
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_serve::SpellHost;
use cantrip_service::SpellCatalog;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use cantrip_local::process;
use cantrip_local::runtime::runtime;
use cantrip_local::spell_catalog::{BUILT_IN, FileSpellCatalog};
use cantrip_local::store::{self, Access, Store};
use cantrip_terminal::interrupt;
use cantrip_terminal::present::Present;
use cantrip_terminal::tap::Tap;

/// Run as an agent inside an editor by the Agent Client Protocol (ACP), over standard input and output.
///
/// The editor starts it. Only protocol messages go to standard output. A session is an entity and every prompt is a
/// cast, so the conversation is in the loom, and a session can be continued after a restart. Calls that need a person's
/// approval are shown in the editor.
///
/// It prints nothing until the editor sends a request. An idle process is healthy: it waits for the editor, and ends
/// when its input is closed. `cantrip doctor` checks that it answers.
#[derive(Debug, clap::Args)]
#[command(after_help = "In Zed's settings.json:\n  \
                        \"agent_servers\": {\"Cantrip\": {\"command\": \"cantrip\", \"args\": [\"acp\"]}}\n\n\
                        Examples:\n  cantrip acp --spell analyst")]
pub(crate) struct Acp {
    /// The spell that new sessions use. The editor can choose another.
    #[arg(long, value_name = "SPELL", default_value = BUILT_IN)]
    spell: String,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,

    /// Log each message on standard error: its direction, method, id and size, but not its content.
    #[arg(long)]
    debug: bool,
}

impl Acp {
    pub(crate) async fn run(&self, guard: &Guard) -> ExitCode {
        // Standard output carries the protocol, so errors before serving begins go to standard error.
        let present = Present { json: false };
        let (agent, host) = match self.agent(guard) {
            Ok(agent) => agent,
            Err(refusal) => return present.refuse(guard, "acp", refusal).await,
        };
        let served = tokio::select! {
            served = agent.serve(
                Tap::incoming(tokio::io::stdin(), self.debug),
                Tap::outgoing(tokio::io::stdout(), self.debug),
            ) => served.map_err(|error| error.message),
            () = interrupt::wait_for_end_signal() => {
                host.local_service().park_all().await;
                Ok(())
            }
        };
        let guarded = guard.call(Call::surface("acp"), |rb| async {
            match served {
                Ok(()) => rb.success(codes::ok("acp")),
                Err(cause) => rb.error(codes::unreachable("the editor", cause)),
            }
        });
        ExitCode::from(present.show_reply(guarded.await, || {}))
    }

    fn agent(&self, guard: &Guard) -> Result<(Agent, SpellHost), Refusal> {
        cantrip_acp::check_built()?;
        let store = Arc::new(store::open_here(self.store.as_deref(), Access::Write)?);
        let person = EditorUser::default();
        let shelf = FileSpellCatalog::new(Arc::clone(&store))?
            .with_human(person.clone())
            .with_first_spell(Some(self.spell.clone()));
        if !shelf.spells().iter().any(|card| card.name == self.spell) {
            return Err(codes::not_found("spell", self.spell.as_str()).into());
        }
        let runtime = runtime(&store, guard).with_approvals(true);
        let host = SpellHost::open(runtime, shelf.clone());
        let owner = Actor::new("local").map_err(|_| codes::crash())?;
        let drawer = SessionFiles { shelf, store, unwritten: Mutex::default() };
        Ok((Agent::new(host.clone(), drawer, person, owner), host))
    }
}

/// Session records in files beside the loom, or in memory if the store does not outlive the process.
struct SessionFiles {
    shelf: FileSpellCatalog,
    store: Arc<Store>,
    unwritten: Mutex<HashMap<RunId, SessionRecord>>,
}

impl SessionFiles {
    fn folder(&self) -> Option<PathBuf> {
        self.store.beside.as_ref().map(|beside| beside.join("sessions"))
    }

    fn read(path: &Path) -> Option<SessionRecord> {
        serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
    }

    fn write_record(folder: &Path, noted: &SessionRecord) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut file, &serde_json::to_vec(noted)?)?;
        file.persist(folder.join(format!("{}.json", noted.session)))?;
        Ok(())
    }
}

impl SessionStore for SessionFiles {
    fn spell_catalog(&self, folder: &Path) -> Result<Arc<dyn SpellCatalog>, Refusal> {
        Ok(Arc::new(self.shelf.for_folder(folder)))
    }

    fn save(&self, noted: &SessionRecord) -> Result<(), Refusal> {
        match self.folder() {
            Some(folder) => Self::write_record(&folder, noted)
                .map_err(|error| codes::io_failed("write", folder.display().to_string(), error.to_string()).into()),
            None => {
                self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).insert(noted.session, noted.clone());
                Ok(())
            }
        }
    }

    fn load(&self, session: RunId) -> Option<SessionRecord> {
        match self.folder() {
            Some(folder) => Self::read(&folder.join(format!("{session}.json"))),
            None => self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned(),
        }
    }

    fn list(&self) -> Vec<SessionRecord> {
        match self.folder() {
            Some(folder) => {
                let files = fs::read_dir(folder).into_iter().flatten().flatten();
                files.filter_map(|file| Self::read(&file.path())).collect()
            }
            None => self.unwritten.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect(),
        }
    }

    fn release_run(&self, run: RunId) -> BoxFuture<'_, Result<(), Refusal>> {
        async move { process::release_run(&self.store.loom, run).await.map(drop) }.boxed()
    }
}
