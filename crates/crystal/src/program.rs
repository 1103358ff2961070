//! The program crystal: its only answer is a user's program.
//!
//! So a file of code in a code circle is a cast like any other: journalled, resumed, forked, allowed to call entities,
//! and without tokens. The request says how many answers there were; the crystal does not remember it, because a
//! request that is repeated after a crash would otherwise find the program already used.

use std::path::Path;

use cantrip_loom::{Finish, Usage};
use serde_json::{Map, Value};

use crate::assembler::{AnswerEnd, Assembler};
use crate::scripted::{ScriptFault, fence_program, file_text};
use crate::{Answer, Cause, Charge, Crystal, EventSink, Failure, Price, Profile, ProgramFormat, Request};

/// Answers with one program, once per cast, in the format of the circle.
#[derive(Debug, Clone)]
pub struct ProgramCrystal {
    name: String,
    code: String,
}

impl ProgramCrystal {
    /// Creates a crystal that answers with `code`, under a name of the form `program/<file>`.
    pub fn new(name: impl Into<String>, code: impl Into<String>) -> Self {
        Self { name: name.into(), code: code.into() }
    }

    /// Reads the program from a file.
    pub fn open(path: &Path) -> Result<Self, ScriptFault> {
        Ok(Self::new(format!("program/{}", path.display()), file_text(path)?))
    }
}

impl Crystal for ProgramCrystal {
    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> Profile {
        Profile { programs: true, ..Profile::of(&self.name) }
    }

    /// Always free, whatever its name: it runs in this process.
    fn price(&self) -> Price {
        Price::Free
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        if request.utterances > 0 {
            return Err(Failure::rejected(&self.name, "script exhausted: a program is said once; let it call done"));
        }
        let mut said = Assembler::new(&self.name, request, heard);
        match say(&mut said, &self.code, &request.program) {
            Ok(finish) => {
                said.finish(AnswerEnd { usage: Some(Usage::default()), ..AnswerEnd::new(&*self.name, finish) })
            }
            Err(cause) => Err(said.fail(cause, Charge::Nothing)),
        }
    }
}

fn say(said: &mut Assembler<'_>, code: &str, program: &ProgramFormat) -> Result<Finish, Cause> {
    match program {
        ProgramFormat::Call { name, argument } => {
            let mut args = Map::new();
            args.insert(argument.clone(), code.into());
            said.call(0, None, Some(name))?;
            said.arguments(0, &Value::Object(args).to_string())?;
            said.end_call(0)?;
            Ok(Finish::Calls)
        }
        ProgramFormat::Fenced { language } => {
            said.text(&fence_program(code, language, false))?;
            Ok(Finish::Stop)
        }
        ProgramFormat::None => Err(Cause::Rejected { detail: "a program needs a circle that runs code".into() }),
    }
}
