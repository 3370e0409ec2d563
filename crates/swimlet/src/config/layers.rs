//! Where each setting's text comes from, and everything that is wrong with it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use clap::ArgMatches;

use super::table::{For, SETTINGS};

/// The text of every setting of a role, with where it was found.
pub(crate) struct Layers {
    role: For,
    found: BTreeMap<&'static str, Found>,
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults(Vec<String>);

struct Found {
    text: String,
    source: String,
}

impl Layers {
    /// Collects the settings of `role` from flags, environment, file and defaults.
    ///
    /// Faults of the collecting itself (an unreadable file, an unknown key) are added to `faults`; what could be read is returned all the same,
    /// so that its faults are named in the same message.
    pub(crate) fn collect(
        role: For,
        flags: &ArgMatches,
        environment: impl Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Self {
        let path = flags
            .get_one::<String>("config")
            .cloned()
            .or_else(|| environment("SWIMLET_CONFIG"));
        let mut file = path.map_or_else(BTreeMap::new, |path| {
            read_file(Path::new(&path), role, faults)
        });
        let mut found = BTreeMap::new();
        for setting in SETTINGS.iter().filter(|s| s.is_for(role)) {
            let env = setting.env();
            let flag = flags
                .get_one::<String>(setting.key)
                .map(|text| (text.clone(), format!("--{}", setting.key)));
            let value = flag
                .or_else(|| environment(&env).map(|text| (text, env)))
                .or_else(|| file.remove(setting.key))
                .or_else(|| {
                    let text = setting.default?.to_owned();
                    Some((text, "default".to_owned()))
                });
            if let Some((text, source)) = value {
                found.insert(setting.key, Found { text, source });
            }
        }
        Self { role, found }
    }

    /// The role these settings are for.
    pub(crate) const fn role(&self) -> For {
        self.role
    }

    /// Every setting with its text and source, for `/v1/config`.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.found
            .iter()
            .map(|(key, found)| (*key, found.text.as_str(), found.source.as_str()))
    }

    /// A setting that must be there.
    pub(crate) fn required<T>(&self, key: &'static str, faults: &mut Faults) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        if self.text(key).is_none() {
            faults.add(format!("{key} is required"));
        }
        self.optional(key, faults)
    }

    /// A setting that may be absent or empty.
    pub(crate) fn optional<T>(&self, key: &'static str, faults: &mut Faults) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.parse(key, self.text(key)?, faults)
    }

    /// A setting whose empty text is a value.
    pub(crate) fn plain<T>(&self, key: &'static str, faults: &mut Faults) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = self.found.get(key).map_or("", |found| &found.text);
        self.parse(key, text, faults)
    }

    /// A comma-separated setting; empty if it is absent.
    pub(crate) fn list<T>(&self, key: &'static str, faults: &mut Faults) -> Vec<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        self.text(key)
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .filter_map(|item| self.parse(key, item, faults))
            .collect()
    }

    fn text(&self, key: &str) -> Option<&str> {
        let text = self.found.get(key)?.text.trim();
        (!text.is_empty()).then_some(text)
    }

    fn parse<T>(&self, key: &str, text: &str, faults: &mut Faults) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                let source = self.found.get(key).map_or("default", |f| &f.source);
                faults.add(format!("{key} = {text:?} (from {source}): {error}"));
                None
            }
        }
    }
}

impl Faults {
    /// Adds one fault.
    pub(crate) fn add(&mut self, fault: String) {
        self.0.push(fault);
    }

    /// How many were found.
    pub(crate) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is wrong.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        writeln!(f, "the configuration has {} fault{plural}:", self.0.len())?;
        self.0
            .iter()
            .try_for_each(|fault| writeln!(f, "  - {fault}"))
    }
}

fn read_file(
    path: &Path,
    role: For,
    faults: &mut Faults,
) -> BTreeMap<&'static str, (String, String)> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            faults.add(format!("the file {shown} cannot be read: {error}"));
            return BTreeMap::new();
        }
    };
    let parsed: BTreeMap<String, Value> = match serde_saphyr::from_str(&text) {
        Ok(parsed) => parsed,
        Err(error) => {
            faults.add(format!(
                "the file {shown} is no YAML mapping of settings: {error}"
            ));
            return BTreeMap::new();
        }
    };
    let mut known = BTreeMap::new();
    for (key, value) in parsed {
        match SETTINGS.iter().find(|s| s.key == key && s.is_for(role)) {
            Some(setting) => {
                known.insert(setting.key, (value.into_text(), format!("file {shown}")));
            }
            None => faults.add(format!("the file {shown} has an unknown key {key:?}")),
        }
    }
    known
}

/// A value in the file: a scalar, or a list where the flag takes commas.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Value {
    Bool(bool),
    Integer(i64),
    Text(String),
    List(Vec<String>),
}

impl Value {
    fn into_text(self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Text(value) => value,
            Self::List(values) => values.join(","),
        }
    }
}
