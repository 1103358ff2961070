//! The settings of a reader: theme, density, zone and keys. They are in a cookie, so that no page changes after it was
//! drawn.

use maud::{Markup, html};

use crate::frame::{self, Chrome, Crumb, form_fields};

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident, $key:literal { $first:ident = $first_text:literal $first_label:literal,
        $($rest:ident = $text:literal $label:literal),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $name {
            #[default]
            $first,
            $($rest),+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[Self::$first, $(Self::$rest),+];
            /// The name of the form field and of the entry in the cookie.
            pub const FIELD: &'static str = $key;

            /// The value as forms and the cookie write it.
            pub const fn as_str(self) -> &'static str {
                match self { Self::$first => $first_text, $(Self::$rest => $text),+ }
            }

            /// Reads a value; any other text is the default.
            pub fn parse(text: &str) -> Self {
                Self::ALL.iter().copied().find(|choice| choice.as_str() == text).unwrap_or_default()
            }

            const fn label(self) -> &'static str {
                match self { Self::$first => $first_label, $(Self::$rest => $label),+ }
            }

            /// The attribute of the page; none for the default.
            pub(crate) fn attribute(self) -> Option<&'static str> {
                (self != Self::default()).then_some(self.as_str())
            }
        }
    )+};
}

choices! {
    /// The colours of the pages.
    Theme, "theme" { System = "system" "As the system", Light = "light" "Light", Dark = "dark" "Dark" }
    /// The room between lines and turns.
    Density, "density" { Airy = "airy" "Airy", Dense = "dense" "Dense" }
    /// The zone in which times are shown.
    Zone, "zone" { Reader = "reader" "My own zone", Utc = "utc" "UTC" }
    /// Single keys as commands.
    Keys, "keys" { On = "on" "On", Off = "off" "Off" }
}

/// The settings of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    pub theme: Theme,
    pub density: Density,
    pub zone: Zone,
    pub keys: Keys,
}

impl Settings {
    /// Reads the value of the cookie. Whatever it does not say, or says in another form, is the default.
    ///
    /// ```
    /// # use cantrip_pages::settings::{Settings, Theme, Zone};
    /// let settings = Settings::from_cookie("theme:dark.zone:utc");
    /// assert_eq!((settings.theme, settings.zone), (Theme::Dark, Zone::Utc));
    /// assert_eq!(Settings::from_cookie(&settings.cookie_value()), settings);
    /// assert_eq!(Settings::from_cookie("theme:<script>"), Settings::default());
    /// ```
    pub fn from_cookie(value: &str) -> Self {
        value.split('.').filter_map(|entry| entry.split_once(':')).fold(Self::default(), Self::with)
    }

    /// Returns the settings with one of them changed, as a form field says it. An unknown field changes nothing.
    #[must_use]
    pub fn with(self, (field, value): (&str, &str)) -> Self {
        match field {
            Theme::FIELD => Self { theme: Theme::parse(value), ..self },
            Density::FIELD => Self { density: Density::parse(value), ..self },
            Zone::FIELD => Self { zone: Zone::parse(value), ..self },
            Keys::FIELD => Self { keys: Keys::parse(value), ..self },
            _ => self,
        }
    }

    /// Returns the value of the cookie: letters, colons and full stops only.
    pub fn cookie_value(self) -> String {
        let entries = [
            (Theme::FIELD, self.theme.as_str()),
            (Density::FIELD, self.density.as_str()),
            (Zone::FIELD, self.zone.as_str()),
            (Keys::FIELD, self.keys.as_str()),
        ];
        entries.map(|(field, value)| format!("{field}:{value}")).join(".")
    }
}

/// Returns the page of the settings.
pub fn settings_page(chrome: &Chrome<'_>) -> String {
    let Settings { theme, density, zone, keys } = chrome.settings;
    let chrome =
        Chrome { title: "Settings".to_owned(), crumbs: vec![Crumb::here("Settings")], place: None, ..chrome.clone() };
    let content = html! {
        form class="sheet" method="post" action="/settings" {
            (form_fields(chrome.part.forms, "settings"))
            (group(Theme::FIELD, "Theme", Theme::ALL.iter().map(|it| (it.as_str(), it.label(), *it == theme))))
            (group(Density::FIELD, "Density", Density::ALL.iter().map(|it| (it.as_str(), it.label(), *it == density))))
            (group(Zone::FIELD, "Times", Zone::ALL.iter().map(|it| (it.as_str(), it.label(), *it == zone))))
            (group(Keys::FIELD, "Single keys", Keys::ALL.iter().map(|it| (it.as_str(), it.label(), *it == keys))))
            p class="faint" { a href="/keys" { "The list of keys" } }
            div class="row" { button class="btn go" { "Save" } }
        }
    };
    frame::page(&chrome, html! {}, &[], content)
}

/// Returns a group of choices, one of which is set.
fn group<'a>(field: &str, label: &str, choices: impl Iterator<Item = (&'a str, &'a str, bool)>) -> Markup {
    html! {
        fieldset {
            legend { (label) }
            @for (value, label, is_set) in choices {
                label class="pick" { input type="radio" name=(field) value=(value) checked[is_set]; (label) }
            }
        }
    }
}
