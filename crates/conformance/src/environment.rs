//! The environment of one case: its crystals, its circle, its files and its own loom.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fs, io};

use cantrip::fold::FoldOptions;
use cantrip::{Call, Cantrip, CantripFaults, Runtime, loom_id_for};
use cantrip_canon::{EntityId, LoomId};
use cantrip_circle::gate::builtin::Root;
use cantrip_circle::gate::canonical_name;
use cantrip_circle::{AnyGate, Circle, DelegationGrants, Medium};
use cantrip_crystal::{AnyCrystal, Hosted, RetryPolicy, ScriptedCrystal};
use cantrip_loom::AnyLoom;
use cantrip_service::Service;

use crate::gates::{Executions, Fixture, built_in, configure_gate};
use crate::loopback::Loopback;
use crate::setup::{CrystalSetup, GateSetup, Says, Setup};

/// Everything that a case needs before its first step. Dropping it removes its files and stops its servers.
pub(crate) struct CaseEnvironment<'a> {
    pub(crate) service: Service,
    /// The name of the case's loom.
    name: String,
    setup: &'a Setup,
    mediums: &'a [Arc<dyn Medium>],
    crystals: BTreeMap<String, AnyCrystal>,
    /// The scripted crystals, which record their requests, by the key of the setup.
    scripted: BTreeMap<String, ScriptedCrystal>,
    delegates: DelegationGrants,
    children: Vec<(String, AnyCrystal)>,
    folder: Option<tempfile::TempDir>,
    executions: BTreeMap<String, Executions>,
    _servers: Vec<Loopback>,
    /// The built cantrips, one for each crystal that is cast.
    cantrips: BTreeMap<String, Cantrip>,
    /// The summoned entities, by the names that the case gave them.
    pub(crate) summoned: BTreeMap<String, EntityId>,
}

/// The reason why a cantrip could not be built.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// The faults that the builder reported.
    Faults(CantripFaults),
    /// The case could not be set up, which is not an answer of the product.
    Setup(String),
}

impl From<String> for BuildError {
    fn from(fault: String) -> Self {
        Self::Setup(fault)
    }
}

impl<'a> CaseEnvironment<'a> {
    pub(crate) async fn new(
        setup: &'a Setup,
        store: AnyLoom,
        mediums: &'a [Arc<dyn Medium>],
        name: String,
    ) -> Result<Self, String> {
        let service = Service::new(Runtime::new(store));
        let mut world = Self {
            service,
            name,
            setup,
            mediums,
            crystals: BTreeMap::new(),
            scripted: BTreeMap::new(),
            delegates: DelegationGrants::default(),
            children: Vec::new(),
            folder: None,
            executions: BTreeMap::new(),
            _servers: Vec::new(),
            cantrips: BTreeMap::new(),
            summoned: BTreeMap::new(),
        };
        if let Some(crystal) = &setup.crystal {
            world.add("crystal", crystal).await?;
        }
        for (key, crystal) in &setup.named {
            world.add(key, crystal).await?;
        }
        for (level, crystal) in (1..).zip(&setup.children) {
            let made = world.make(&format!("child_crystal_l{level}"), crystal).await?;
            let name = crystal.name.clone().unwrap_or_else(|| format!("child_crystal_l{level}"));
            if crystal.name.is_some() {
                world.delegates.crystals.insert(name.clone());
            }
            world.delegates.crystal_by_level.push(name.clone());
            world.children.push((name, made));
        }
        world.write_files().map_err(|error| format!("the files of the case cannot be written: {error}"))?;
        Ok(world)
    }

    async fn add(&mut self, key: &str, crystal: &CrystalSetup) -> Result<(), String> {
        let made = self.make(key, crystal).await?;
        self.crystals.insert(key.to_owned(), made);
        Ok(())
    }

    async fn make(&mut self, key: &str, crystal: &CrystalSetup) -> Result<AnyCrystal, String> {
        match &crystal.says {
            Says::Script(script) => {
                let scripted = ScriptedCrystal::new(format!("scripted/{key}"), script.clone());
                self.scripted.insert(key.to_owned(), scripted.clone());
                Ok(AnyCrystal::new(scripted))
            }
            Says::Body(body) => {
                let server = Loopback::serve(body.to_string()).await;
                let server = server.map_err(|error| format!("no provider can be served on loopback: {error}"))?;
                let model = crystal.name.as_deref().unwrap_or("model");
                let crystal = Hosted::compatible(model, server.url(), None)
                    .map_err(|fault| fault.to_string())?
                    .without_window_lookup();
                self._servers.push(server);
                Ok(AnyCrystal::new(crystal))
            }
        }
    }

    /// Writes the files of the case below a temporary folder and creates the roots of its gates there.
    fn write_files(&mut self) -> io::Result<()> {
        let roots: Vec<&str> =
            self.setup.circle.iter().flat_map(|circle| &circle.gates).filter_map(|gate| gate.root.as_deref()).collect();
        if self.setup.files.is_empty() && roots.is_empty() {
            return Ok(());
        }
        let folder = tempfile::tempdir()?;
        for root in roots {
            fs::create_dir_all(below(folder.path(), root))?;
        }
        for (path, text) in &self.setup.files {
            let path = below(folder.path(), path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, text)?;
        }
        self.folder = Some(folder);
        Ok(())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the working folder of a session: the folder of the case's files, or a new one.
    pub(crate) fn working_folder(&mut self) -> io::Result<PathBuf> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => tempfile::tempdir()?,
        };
        Ok(self.folder.insert(folder).path().to_owned())
    }

    pub(crate) fn loom(&self) -> LoomId {
        loom_id_for(&self.name)
    }

    pub(crate) fn scripted(&self, key: &str) -> Option<&ScriptedCrystal> {
        self.scripted.get(key)
    }

    /// Returns the number of times that a gate of the case was entered; None if the case has no such gate.
    pub(crate) fn executions(&self, gate: &str) -> Option<u64> {
        self.executions.get(gate).map(|executions| executions.load(Ordering::SeqCst))
    }

    /// Returns the cantrip with the crystal of this key. It is built once; later calls return the same value.
    pub(crate) fn cantrip(&mut self, crystal: Option<&str>) -> Result<Cantrip, BuildError> {
        let key = crystal.unwrap_or("crystal");
        if let Some(cantrip) = self.cantrips.get(key) {
            return Ok(cantrip.clone());
        }
        let cantrip = self.build(key)?;
        self.cantrips.insert(key.to_owned(), cantrip.clone());
        Ok(cantrip)
    }

    fn build(&mut self, crystal: &str) -> Result<Cantrip, BuildError> {
        let Setup { circle, call, trigger_after_turns, retry, .. } = self.setup;
        let mut builder = Cantrip::builder().name(&self.name).park(false);
        if let Some(crystal) = self.crystals.get(crystal) {
            builder = builder.crystal(crystal.clone());
        }
        for (name, crystal) in &self.children {
            builder = builder.child_crystal(name, crystal.clone());
        }
        if let Some(circle) = circle {
            let mut built = Circle::builder().wards(&circle.wards);
            for medium in &circle.mediums {
                built = built.medium(*medium);
            }
            for gate in &circle.gates {
                let made = self.gate(gate)?;
                built = match canonical_name(&gate.name) {
                    "call_agent" | "call_agent_batch" => built.delegation_gate(made, self.delegates.clone()),
                    _ => built.gate(made),
                };
            }
            builder = builder.circle(built);
        }
        for medium in self.mediums {
            builder = builder.serve_medium(Arc::clone(medium));
        }
        let mut conditioned = Call::new();
        if let Some(prompt) = &call.system_prompt {
            conditioned = conditioned.system_prompt(prompt);
        }
        if let Some(temperature) = call.temperature {
            conditioned = conditioned.temperature(temperature);
        }
        if let Some(choice) = call.tool_choice {
            conditioned = conditioned.tool_choice(choice);
        }
        if call.require_done_tool {
            conditioned = conditioned.require_done_tool();
        }
        builder = builder.call(conditioned);
        if let Some(turns) = trigger_after_turns {
            builder = builder.folding(FoldOptions::after_turns(*turns));
        }
        let usual = RetryPolicy::default();
        builder = builder.retry(RetryPolicy {
            max_retries: retry.max_retries.unwrap_or(usual.max_retries),
            retryable_status_codes: retry.retryable_status_codes.clone().unwrap_or(usual.retryable_status_codes),
            ..RetryPolicy::default()
        });
        builder.build().map_err(BuildError::Faults)
    }

    fn gate(&mut self, setup: &GateSetup) -> Result<AnyGate, String> {
        let made = match &setup.fixture {
            Some(behaves) => {
                let executions = Arc::clone(self.executions.entry(setup.name.clone()).or_default());
                AnyGate::from(Fixture::new(&setup.name, behaves.clone(), executions))
            }
            None => {
                let root = match (&setup.root, &self.folder) {
                    (Some(root), Some(folder)) => {
                        Some(Root::at(below(folder.path(), root)).map_err(|fault| fault.to_string())?)
                    }
                    (Some(_), None) | (None, _) => None,
                };
                built_in(&setup.name, root, self.service.runtime().loom())
                    .ok_or_else(|| format!("{:?} is no built-in gate", setup.name))?
            }
        };
        Ok(configure_gate(made, setup))
    }
}

/// Maps an absolute path of the case to a path below this folder.
fn below(folder: &Path, path: &str) -> PathBuf {
    folder.join(path.trim_start_matches('/'))
}
