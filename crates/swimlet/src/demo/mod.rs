//! `swimlet demo`: a whole cluster in one process, and one death, told as it happens.
//!
//! Everything but the API server is the product itself: agents and aggregators speak
//! QUIC over loopback, and the stand-in API server speaks HTTP to the same client as
//! in production. Demo nodes die without a word: their sockets stay and discard
//! everything, because a closed port would answer for them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`cluster`] | nodes, agents and aggregators of the demo |
//! | [`story`] | what happens, in order |
//! | [`teller`] | how it is shown: lines, colours, JSON |
//! | [`observer`] | what the API server says of nodes and pods |

mod cluster;
mod observer;
mod story;
mod teller;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::cli;

pub(crate) use story::run;

/// Fewest nodes: with two, each is the other's only witness beside the aggregators.
const NODES_MIN: u16 = 2;
/// Most nodes: each is an agent with sockets of its own in this process.
const NODES_MAX: u16 = 500;

/// What the demo shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) nodes: u16,
    pub(crate) kill: u16,
    pub(crate) json: bool,
}

/// The subcommand with its flags.
pub(crate) fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .default_value(default)
            .value_parser(value_parser!(u16))
            .help(help)
    };
    Command::new("demo")
        .about("Show it: a cluster in this process, and a node that dies without a word")
        .arg(number("nodes", "12", "How many nodes, 2 to 500"))
        .arg(number(
            "kill",
            "1",
            "How many of them die, at once; less than half",
        ))
        .arg(cli::switch(
            "json",
            "One JSON object a line; the last is the summary",
        ))
}

impl Options {
    /// Reads the flags; the message says what is wrong with them.
    pub(crate) fn parse(flags: &ArgMatches) -> Result<Self, String> {
        let number = |name| flags.get_one::<u16>(name).copied().unwrap_or_default();
        let (nodes, kill) = (number("nodes"), number("kill"));
        if !(NODES_MIN..=NODES_MAX).contains(&nodes) {
            return Err(format!(
                "swimlet: --nodes is {nodes}; the demo has {NODES_MIN} to {NODES_MAX} nodes\n"
            ));
        }
        // Exactly half is no quorum: nothing would be written, and rightly so.
        if kill == 0 || kill * 2 > nodes || (kill * 2 == nodes && nodes > 2) {
            return Err(format!(
                "swimlet: --kill is {kill}; of {nodes} nodes at least 1 and less than half can die, for a minority writes nothing\n"
            ));
        }
        Ok(Self {
            nodes,
            kill,
            json: flags.get_flag("json"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, String> {
        let args = std::iter::once("demo").chain(args.iter().copied());
        Options::parse(&command().try_get_matches_from(args).unwrap())
    }

    #[test]
    fn a_demo_that_could_not_end_well_is_refused() {
        assert_eq!(parse(&[]).unwrap().nodes, 12);
        assert!(parse(&["--nodes", "1"]).unwrap_err().contains("2 to 500"));
        assert!(parse(&["--kill", "0"]).is_err());
        assert!(
            parse(&["--nodes", "12", "--kill", "6"])
                .unwrap_err()
                .contains("less than half")
        );
        assert!(parse(&["--nodes", "12", "--kill", "5"]).is_ok());
    }
}
