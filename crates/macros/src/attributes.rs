//! The arguments of `#[gate(...)]`: the declared properties of the gate.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Ident, LitStr, Token, parenthesized};

const PURITIES: [&str; 3] = ["idempotent", "read_only", "pure"];
const LABELS: [(&str, &str); 3] =
    [("private_data", "PrivateData"), ("untrusted_content", "UntrustedContent"), ("external_comm", "ExternalComm")];

/// The gate's name if it differs from the function's, and the builder calls for its declared properties.
#[derive(Default)]
pub(crate) struct GateAttributes {
    pub(crate) name: Option<LitStr>,
    pub(crate) calls: Vec<TokenStream>,
    purity: Option<Ident>,
}

impl Parse for GateAttributes {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut promised = Self::default();
        while !input.is_empty() {
            promised.one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(promised)
    }
}

impl GateAttributes {
    fn one(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let key: Ident = input.parse()?;
        match key.to_string().as_str() {
            "name" => {
                input.parse::<Token![=]>()?;
                self.name = Some(input.parse()?);
            }
            "ephemeral" | "polling" => self.calls.push(quote!(.#key())),
            "labels" => self.labels(input)?,
            purity if PURITIES.contains(&purity) => {
                if let Some(earlier) = &self.purity {
                    let fault = format!("`{key}` and `{earlier}` are two answers to one question; keep the stronger");
                    return Err(syn::Error::new(key.span(), fault));
                }
                self.calls.push(quote!(.#key()));
                self.purity = Some(key);
            }
            _ => {
                let fault = "expected `name = \"...\"`, `idempotent`, `read_only`, `pure`, `ephemeral`, `polling` or \
                             `labels(private_data, untrusted_content, external_comm)`";
                return Err(syn::Error::new(key.span(), fault));
            }
        }
        Ok(())
    }

    fn labels(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let listed;
        parenthesized!(listed in input);
        let labels = Punctuated::<Ident, Token![,]>::parse_terminated(&listed)?;
        let labels = labels.iter().map(label).collect::<syn::Result<Vec<_>>>()?;
        self.calls.push(quote!(.labels([#(#labels),*])));
        Ok(())
    }
}

fn label(name: &Ident) -> syn::Result<TokenStream> {
    let Some((_, variant)) = LABELS.iter().find(|(spelled, _)| name == spelled) else {
        let fault = "a label is `private_data`, `untrusted_content` or `external_comm`";
        return Err(syn::Error::new(name.span(), fault));
    };
    let variant = Ident::new(variant, name.span());
    Ok(quote!(::cantrip::circle::Label::#variant))
}
