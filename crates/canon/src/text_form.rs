//! How do types that are written as text share their conversions? By macros: a blanket implementation cannot be written
//! for types of other crates.

/// Implements the conversions to and from `String` of types with `Display` and `FromStr`. With
/// `#[serde(try_from = "String", into = "String")]` such a type is written as its text and read by its parser.
#[macro_export]
macro_rules! string_conversions {
    ($($name:ident),+) => {$(
        impl TryFrom<String> for $name {
            type Error = <Self as std::str::FromStr>::Err;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )+};
}

/// Implements `Debug` of types with `Display` as the same text.
#[macro_export]
macro_rules! debug_as_text {
    ($($name:ident),+) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

/// Implements the text of an id that wraps a `String` of a prefix and 32 digits of a hash. The fault shows the first
/// characters of a text that is not such an id.
#[macro_export]
macro_rules! hash_id {
    ($name:ident = $prefix:literal, $fault:ident($shown:literal)) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $fault;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                match text.strip_prefix($prefix) {
                    Some(digits) if digits.len() == 32 && digits.bytes().all(digit) => Ok(Self(text.to_owned())),
                    Some(_) | None => Err($fault(text.chars().take($shown).collect())),
                }
            }
        }

        $crate::string_conversions!($name);
    };
}
