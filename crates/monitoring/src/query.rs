//! Which metrics and labels a PromQL query names.
//!
//! No parser of PromQL: `promtool` and Prometheus are asked whether a query is one. This
//! finds the names in it, so that they can be held to the catalogue.

/// A metric named in a query, with its matchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector<'a> {
    /// The metric's name.
    pub metric: &'a str,
    /// Label and the text that it is matched with, alternatives of a regular expression apart.
    pub matchers: Vec<(&'a str, Vec<&'a str>)>,
}

/// Every series of swimlet that the query selects.
#[must_use]
pub fn selectors(query: &str) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find("swimlet_") {
        let part_of_a_word = rest[..start].ends_with(is_name);
        let tail = &rest[start..];
        let end = tail.find(|c| !is_name(c)).unwrap_or(tail.len());
        let (metric, after) = tail.split_at(end);
        rest = after;
        if !part_of_a_word {
            let braces = after
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'));
            let matchers = braces.map_or_else(Vec::new, |(inside, _)| matchers(inside));
            found.push(Selector { metric, matchers });
        }
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Splits `a="b",c=~"d|e"`; a value that holds a comma is none of ours.
fn matchers(inside: &str) -> Vec<(&str, Vec<&str>)> {
    let matcher = |text: &'_ str| -> Option<(usize, usize)> {
        let end = text.find(|c| !is_name(c))?;
        let value = text.find('"')? + 1;
        Some((end, value))
    };
    inside
        .split(',')
        .map(str::trim)
        .filter_map(|text| {
            let (end, value) = matcher(text)?;
            let value = text[value..].trim_end_matches('"');
            Some((&text[..end], value.split('|').collect()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_matchers_are_found() {
        let query =
            r#"sum(rate(swimlet_a_total{cluster=~"$cluster", kind=~"x|y"}[5m])) > swimlet_b"#;
        let found = selectors(query);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].metric, "swimlet_a_total");
        assert_eq!(
            found[0].matchers,
            [("cluster", vec!["$cluster"]), ("kind", vec!["x", "y"])]
        );
        assert_eq!(found[1].metric, "swimlet_b");
        assert!(found[1].matchers.is_empty());
        assert!(selectors("other_swimlet_b + up").is_empty());
    }
}
