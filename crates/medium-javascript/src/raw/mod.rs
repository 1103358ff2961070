//! The only unsafe code of the medium, in small modules; each opens with the argument why it is sound.

mod engine;
mod heap;
mod native;
mod strand;

pub(super) use engine::{
    Class, Compiled, EngineControls, Job, accessor, add_dates, add_typed_arrays, call, class, compile, construct,
    delete, each_key, element, enter, getter, is_boxed, is_list, is_text, key, load, member, own, prototype, raise,
    run_job, text_bytes, to_number, to_text,
};
pub(super) use heap::Heap;
pub(super) use native::{Entry, Table, attach, constructor, function};
pub(super) use strand::{ProgramCoroutine, ResumeResult, run_on_stack, suspend};
