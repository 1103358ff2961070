//! Host functions that the engine calls.
//!
//! First argument: all host functions are the same C function, distinguished by an id. It finds the sandbox's [`Core`]
//! through the pointer that [`attach`] has put into the context. The pointer is valid whenever the engine can call: a
//! `SandboxEngine` owns both, it drops context and runtime before the core, and a core does not move, because it is in
//! an `Rc`. The engine lends `this` and the arguments for the duration of the call, so each is taken with its own
//! reference; a returned value is handed over with one. So it is sound to enter the function again from inside. No
//! panic leaves these functions: it is kept in the core and is resumed where the program was started.
//!
//! Second argument: a [`Table`] is given to the engine for ever, because the engine creates the function of an entry
//! only when it is first used; so tables are static, and so is everything they point to.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;

use rquickjs::{Ctx, Exception, Object, Value, qjs};

use super::engine::delete;
use crate::engine::Core;

/// Registers the core with the engine: for host functions, for the interrupt handler and for rejected promises.
pub(crate) fn attach(ctx: &Ctx<'_>, core: &Rc<Core>) {
    let core = Rc::as_ptr(core).cast_mut().cast::<c_void>();
    // SAFETY: the context is alive; see the first argument in the module header.
    unsafe {
        let context = ctx.as_raw().as_ptr();
        let runtime = qjs::JS_GetRuntime(context);
        qjs::JS_SetContextOpaque(context, core);
        qjs::JS_SetInterruptHandler(runtime, Some(interrupt), core);
        qjs::JS_SetHostPromiseRejectionTracker(runtime, Some(rejection), core);
    }
}

unsafe extern "C" fn native(
    context: *mut qjs::JSContext,
    this: qjs::JSValue,
    count: qjs::c_int,
    args: *mut qjs::JSValue,
    id: qjs::c_int,
) -> qjs::JSValue {
    // SAFETY: see the first argument in the module header.
    unsafe {
        let Some(inside) = NonNull::new(context) else { return qjs::JS_EXCEPTION };
        let Some(core) = qjs::JS_GetContextOpaque(context).cast::<Core>().as_ref() else { return qjs::JS_EXCEPTION };
        let ctx = Ctx::from_raw(inside);
        let taken = |lent: qjs::JSValue| Value::from_raw(ctx.clone(), qjs::JS_DupValue(context, lent));
        let this = taken(this);
        let args = (0..usize::try_from(count).unwrap_or(0)).map(|at| taken(*args.add(at))).collect();
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        match catch_unwind(AssertUnwindSafe(|| core.native(&ctx, id, this, args))) {
            Ok(Ok(value)) => qjs::JS_DupValue(context, value.as_raw()),
            Ok(Err(error)) => leave_pending(&ctx, error),
            Err(panic) => leave_pending(&ctx, core.panicked(&ctx, panic)),
        }
    }
}

/// Leaves an exception pending for this error, unless one is already pending.
fn leave_pending(ctx: &Ctx<'_>, error: rquickjs::Error) -> qjs::JSValue {
    if matches!(error, rquickjs::Error::Allocation) {
        // SAFETY: the context is alive.
        unsafe { qjs::JS_ThrowOutOfMemory(ctx.as_raw().as_ptr()) };
    } else if !matches!(error, rquickjs::Error::Exception) {
        Exception::throw_internal(ctx, &error.to_string());
    }
    qjs::JS_EXCEPTION
}

unsafe extern "C" fn interrupt(_: *mut qjs::JSRuntime, core: *mut c_void) -> qjs::c_int {
    // SAFETY: see the first argument in the module header.
    let Some(core) = (unsafe { core.cast::<Core>().as_ref() }) else { return 0 };
    qjs::c_int::from(catch_unwind(AssertUnwindSafe(|| core.interrupted())).unwrap_or(true))
}

unsafe extern "C" fn rejection(
    context: *mut qjs::JSContext,
    promise: qjs::JSValue,
    reason: qjs::JSValue,
    handled: bool,
    core: *mut c_void,
) {
    // SAFETY: see the first argument in the module header.
    unsafe {
        let (Some(inside), Some(core)) = (NonNull::new(context), core.cast::<Core>().as_ref()) else { return };
        let ctx = Ctx::from_raw(inside);
        let taken = |lent: qjs::JSValue| Value::from_raw(ctx.clone(), qjs::JS_DupValue(context, lent));
        let (promise, reason) = (taken(promise), taken(reason));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| core.rejection(&ctx, promise, reason, handled))) {
            core.panicked(&ctx, panic);
        }
    }
}

/// The one host function, in the type of the engine's interface.
const NATIVE: qjs::JSCFunctionType = qjs::JSCFunctionType { generic_magic: Some(native) };

/// One property of a [`Table`].
pub(crate) enum Entry {
    Function { name: &'static CStr, length: u8, id: usize },
    Object { name: &'static CStr, members: &'static Table },
}

/// Non-enumerable properties that cost nothing before they are first used.
pub(crate) struct Table {
    entries: Vec<qjs::JSCFunctionListEntry>,
}

// SAFETY: a table does not change after its creation, and everything it points to is static.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub(crate) fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let prop_flags = (qjs::JS_PROP_WRITABLE | qjs::JS_PROP_CONFIGURABLE) as u8;
        let entry = |entry| match entry {
            Entry::Function { name, length, id } => {
                let cproto = qjs::JSCFunctionEnum_JS_CFUNC_generic_magic as u8;
                let func = qjs::JSCFunctionListEntry__bindgen_ty_1__bindgen_ty_1 { length, cproto, cfunc: NATIVE };
                let magic = i16::try_from(id).expect("there are fewer functions than that");
                qjs::JSCFunctionListEntry {
                    name: name.as_ptr(),
                    prop_flags,
                    def_type: qjs::JS_DEF_CFUNC as u8,
                    magic,
                    u: qjs::JSCFunctionListEntry__bindgen_ty_1 { func },
                }
            }
            Entry::Object { name, members } => {
                let tab = members.entries.as_ptr();
                let len = members.entries.len() as qjs::c_int;
                let prop_list = qjs::JSCFunctionListEntry__bindgen_ty_1__bindgen_ty_4 { tab, len };
                qjs::JSCFunctionListEntry {
                    name: name.as_ptr(),
                    prop_flags,
                    def_type: qjs::JS_DEF_OBJECT as u8,
                    magic: 0,
                    u: qjs::JSCFunctionListEntry__bindgen_ty_1 { prop_list },
                }
            }
        };
        Self { entries: entries.into_iter().map(entry).collect() }
    }

    /// Defines these properties on an object, and replaces existing ones of the same names.
    pub(crate) fn define(&'static self, ctx: &Ctx<'_>, object: &Object<'_>) -> rquickjs::Result<()> {
        for entry in &self.entries {
            // SAFETY: the name is a static string that ends in a nul.
            let name = unsafe { CStr::from_ptr(entry.name) };
            // The engine aborts if the property already exists.
            if !delete(ctx, object, name)? {
                return Err(rquickjs::Error::Unknown);
            }
        }
        // SAFETY: see the second argument in the module header.
        let defined = unsafe {
            let (entries, count) = (self.entries.as_ptr(), self.entries.len() as qjs::c_int);
            qjs::JS_SetPropertyFunctionList(ctx.as_raw().as_ptr(), object.as_value().as_raw(), entries, count)
        };
        if defined < 0 { Err(rquickjs::Error::Allocation) } else { Ok(()) }
    }
}

/// Creates a host function.
pub(crate) fn function<'js>(ctx: &Ctx<'js>, name: &CStr, length: u8, id: usize) -> rquickjs::Result<Value<'js>> {
    make_function(ctx, name, length, id, qjs::JSCFunctionEnum_JS_CFUNC_generic_magic)
}

/// Creates a host function that is also a constructor: `this` is the target of `new`, or undefined in a plain call.
pub(crate) fn constructor<'js>(ctx: &Ctx<'js>, name: &CStr, length: u8, id: usize) -> rquickjs::Result<Value<'js>> {
    make_function(ctx, name, length, id, qjs::JSCFunctionEnum_JS_CFUNC_constructor_or_func_magic)
}

fn make_function<'js>(
    ctx: &Ctx<'js>,
    name: &CStr,
    length: u8,
    id: usize,
    kind: qjs::JSCFunctionEnum,
) -> rquickjs::Result<Value<'js>> {
    let id = qjs::c_int::from(i16::try_from(id).map_err(|_| rquickjs::Error::Unknown)?);
    // SAFETY: the context is alive; the engine uses the view of the union that `kind` names.
    unsafe {
        let function = qjs::JS_NewCFunction2(
            ctx.as_raw().as_ptr(),
            NATIVE.generic,
            name.as_ptr(),
            qjs::c_int::from(length),
            kind,
            id,
        );
        if qjs::JS_IsException(function) {
            return Err(rquickjs::Error::Exception);
        }
        Ok(Value::from_raw(ctx.clone(), function))
    }
}
