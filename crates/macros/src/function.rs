//! Parses the function below `#[gate]` and generates the gate's constructor.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Attribute, Expr, ExprLit, FnArg, Ident, ItemFn, Lit, Meta, MetaNameValue, Pat, PatType, ReturnType, Type};

use crate::attributes::GateAttributes;

/// The origin of a parameter's value.
enum Source {
    /// The entity, with each call.
    Entity,
    /// The code that builds the circle, once.
    Builder,
    /// The circle: the call itself.
    Circle,
}

struct Parameter {
    name: Ident,
    kind: Type,
    source: Source,
    /// The attributes for the schema and the parser: the doc comment, and the attributes of `serde` and `schemars`.
    attributes: Vec<Attribute>,
}

pub(crate) struct GateFunction {
    function: ItemFn,
    description: String,
    parameters: Vec<Parameter>,
}

impl GateFunction {
    pub(crate) fn read(mut function: ItemFn) -> syn::Result<Self> {
        if !function.sig.generics.params.is_empty() {
            let fault = "a gate has one schema, so its function cannot be generic";
            return Err(syn::Error::new(function.sig.generics.span(), fault));
        }
        let description = text(&function.attrs);
        if description.is_empty() {
            let fault = "a model chooses a gate by its description: write a doc comment above the function";
            return Err(syn::Error::new(function.sig.ident.span(), fault));
        }
        let parameters = function.sig.inputs.iter_mut().map(parameter).collect::<syn::Result<_>>()?;
        Ok(Self { function, description, parameters })
    }

    pub(crate) fn expand(&self, promised: &GateAttributes) -> TokenStream {
        let ItemFn { attrs, vis, sig, block } = &self.function;
        let ident = &sig.ident;
        let name = promised.name.as_ref().map_or_else(|| ident.to_string(), syn::LitStr::value);
        let (description, calls) = (&self.description, &promised.calls);

        let given = self.from(|source| matches!(source, Source::Builder));
        let asked = self.from(|source| matches!(source, Source::Entity));
        let (given_names, given_kinds) = (names(&given), kinds(&given));
        let (asked_names, asked_kinds) = (names(&asked), kinds(&asked));
        let told = asked.iter().map(|parameter| &parameter.attributes);
        let of_circle = self.from(|source| matches!(source, Source::Circle));
        let call = match of_circle.first() {
            Some(Parameter { name, kind, .. }) => quote!(#name: #kind),
            None => quote!(_: ::cantrip::circle::gate::Call),
        };
        let arguments = format_ident!("{}Arguments", pascal(&ident.to_string()));

        let output = match &sig.output {
            ReturnType::Default => quote!(()),
            ReturnType::Type(_, kind) => quote!(#kind),
        };
        let body = if sig.asyncness.is_some() {
            quote!(async move { let output: #output = async move #block.await; output })
        } else {
            quote!(async move { let output: #output = (move || #block)(); output })
        };
        let body = if returns_result(&sig.output) {
            body
        } else {
            quote!(async move { ::core::result::Result::<#output, ::cantrip::reply::Refusal>::Ok(#body.await) })
        };

        quote! {
            #(#attrs)*
            #vis fn #ident(#(#given_names: #given_kinds),*) -> ::cantrip::circle::AnyGate {
                #[derive(::cantrip::derived::Deserialize, ::cantrip::derived::JsonSchema)]
                #[serde(crate = "::cantrip::derived::serde", deny_unknown_fields)]
                #[schemars(crate = "::cantrip::derived::schemars")]
                struct #arguments {
                    #(#(#told)* #asked_names: #asked_kinds,)*
                }
                ::cantrip::circle::gate::gate_with_call(
                    #name,
                    #description,
                    move |#call, #arguments { #(#asked_names),* }: #arguments| {
                        #(let #given_names: #given_kinds = ::core::clone::Clone::clone(&#given_names);)*
                        #body
                    },
                )
                #(#calls)*
                .into()
            }
        }
    }

    fn from(&self, wanted: fn(&Source) -> bool) -> Vec<&Parameter> {
        self.parameters.iter().filter(|parameter| wanted(&parameter.source)).collect()
    }
}

fn names<'a>(parameters: &[&'a Parameter]) -> Vec<&'a Ident> {
    parameters.iter().map(|parameter| &parameter.name).collect()
}

fn kinds<'a>(parameters: &[&'a Parameter]) -> Vec<&'a Type> {
    parameters.iter().map(|parameter| &parameter.kind).collect()
}

fn parameter(argument: &mut FnArg) -> syn::Result<Parameter> {
    let FnArg::Typed(PatType { attrs, pat, ty, .. }) = argument else {
        return Err(syn::Error::new(argument.span(), "a gate is a free function: give it what it needs by `#[given]`"));
    };
    let Pat::Ident(named) = &**pat else {
        return Err(syn::Error::new(pat.span(), "an argument needs a name: the entity reads it"));
    };
    if let Type::Reference(reference) = &**ty {
        return Err(syn::Error::new(reference.span(), "a gate outlives its caller: take the value, not a reference"));
    }
    let source = match (has(attrs, "given"), has(attrs, "call")) {
        (false, false) => Source::Entity,
        (true, false) => Source::Builder,
        (false, true) => Source::Circle,
        (true, true) => return Err(syn::Error::new(pat.span(), "`#[given]` or `#[call]`, not both")),
    };
    let told = attrs.iter().filter(|attribute| is_schema_attribute(attribute)).cloned().collect();
    if let Some(strange) = attrs.iter().find(|attribute| !is_schema_attribute(attribute) && !is_ours(attribute)) {
        return Err(syn::Error::new(
            strange.span(),
            "expected `#[given]`, `#[call]`, `#[serde(..)]` or `#[schemars(..)]`",
        ));
    }
    Ok(Parameter { name: named.ident.clone(), kind: (**ty).clone(), source, attributes: told })
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

fn is_schema_attribute(attribute: &Attribute) -> bool {
    ["doc", "serde", "schemars"].iter().any(|known| attribute.path().is_ident(known))
}

fn is_ours(attribute: &Attribute) -> bool {
    attribute.path().is_ident("given") || attribute.path().is_ident("call")
}

/// Returns the doc comment as one text.
fn text(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
        let Meta::NameValue(MetaNameValue { value: Expr::Lit(ExprLit { lit: Lit::Str(line), .. }), .. }) =
            &attribute.meta
        else {
            return None;
        };
        Some(line.value())
    });
    lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Returns true if the function's return type is a `Result`. Only the name is visible here, so an alias must end in
/// `Result`.
fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, kind) = output else { return false };
    let Type::Path(path) = &**kind else { return false };
    path.path.segments.last().is_some_and(|segment| segment.ident.to_string().ends_with("Result"))
}

fn pascal(snake: &str) -> String {
    snake
        .split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
        })
        .collect()
}
