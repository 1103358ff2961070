//! `#[gate]`: makes a gate from a function, and its schema from the function's arguments.
//!
//! The macro generates nothing that cannot be written by hand with `cantrip::circle::gate::gate_with_call`; it only
//! saves writing the argument struct. The accepted forms are documented where the macro is exported: `cantrip::gate`.

mod attributes;
mod function;

use proc_macro::TokenStream;
use syn::parse_macro_input;

use crate::attributes::GateAttributes;
use crate::function::GateFunction;

#[allow(missing_docs, reason = "documented where it is exported, beside examples that need that crate")]
#[proc_macro_attribute]
pub fn gate(promised: TokenStream, function: TokenStream) -> TokenStream {
    let promised = parse_macro_input!(promised as GateAttributes);
    let function = parse_macro_input!(function as syn::ItemFn);
    match GateFunction::read(function) {
        Ok(function) => function.expand(&promised).into(),
        Err(fault) => fault.into_compile_error().into(),
    }
}
