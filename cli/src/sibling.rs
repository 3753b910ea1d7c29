//! The programs that `hawser` becomes. They lie in its folder or in PATH.

use anyhow::anyhow;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The environment variable with the program that plays the lab's nodes.
const NODES: &str = "HAWSER";

/// A program, and where it comes from.
pub(crate) struct Program {
    name: &'static str,
    /// The Debian package, if one has it.
    package: Option<&'static str>,
    /// The folder in the source tree.
    folder: &'static str,
}

pub(crate) const AGENT: Program = Program {
    name: "hawser-agent",
    package: Some("hawser"),
    folder: "replication/agent",
};

const TUNNEL: Program = Program {
    name: "hawser-tunnel",
    package: Some("hawser"),
    folder: "tunnel/tunnel",
};

pub(crate) const MEDIA: Program = Program {
    name: "hawser-media",
    package: Some("hawser"),
    folder: "media/media",
};

const CONTROLLER: Program = Program {
    name: "hawser-controller",
    package: Some("hawser"),
    folder: "control/controller",
};

const CTL: Program = Program {
    name: "hawser-ctl",
    package: Some("hawser-ctl"),
    folder: "control/ctl",
};

const LAB: Program = Program {
    name: "hawser-lab",
    package: None,
    folder: "lab",
};

/// A command of `hawser` that is one of another program.
pub(crate) struct Sibling {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    program: Program,
    /// Whether the program has other commands, too, and therefore needs the name of this one.
    is_one_of_several: bool,
}

/// The commands of the programs. Each is explained by the program itself.
pub(crate) const COMMANDS: &[Sibling] = &[
    whole(
        "agent",
        AGENT,
        "Replicate and deduplicate packets on this node",
    ),
    one_of("status", AGENT, "Show the status of the agent of a node"),
    one_of(
        "enrol",
        AGENT,
        "Make this machine a node of a controller, and exit",
    ),
    whole(
        "controller",
        CONTROLLER,
        "Decide the policies of flows, and assign flows to nodes",
    ),
    whole("ctl", CTL, "Query and operate a controller"),
    whole(
        "tunnel",
        TUNNEL,
        "Carry IP packets over several uplinks at once",
    ),
    one_of(
        "publish",
        MEDIA,
        "Send a recording to viewers over UDP, encrypted",
    ),
    one_of(
        "relay",
        MEDIA,
        "Send a broadcast to many viewers, in the kernel",
    ),
    one_of(
        "view",
        MEDIA,
        "Watch a stream that is sent over UDP, and measure it",
    ),
    one_of(
        "serve",
        MEDIA,
        "Play a recording to viewers that request frames, over TCP",
    ),
    one_of(
        "fetch",
        MEDIA,
        "Request the frames of `hawser serve`, and measure them",
    ),
    whole(
        "lab",
        LAB,
        "Run experiments on emulated networks on this machine",
    ),
];

const fn whole(name: &'static str, program: Program, about: &'static str) -> Sibling {
    Sibling {
        name,
        about,
        program,
        is_one_of_several: false,
    }
}

const fn one_of(name: &'static str, program: Program, about: &'static str) -> Sibling {
    Sibling {
        is_one_of_several: true,
        ..whole(name, program, about)
    }
}

impl Sibling {
    /// Replaces this process by the program, with the arguments of the command. Returns only if that fails.
    pub(crate) fn become_with(&self, mut arguments: Vec<OsString>) -> anyhow::Error {
        let Sibling { name, program, .. } = self;
        if self.is_one_of_several {
            arguments.insert(0, name.into());
            return program.become_with("hawser", arguments);
        }
        program.become_with(&format!("hawser {name}"), arguments)
    }
}

impl Program {
    /// Replaces this process by the program, which is told that it was started as `started_as`. Returns only if that fails:
    /// the error of a program that is missing says where it can be found.
    pub(crate) fn become_with(&self, started_as: &str, arguments: Vec<OsString>) -> anyhow::Error {
        let this = env::current_exe().unwrap_or_default();
        let beside = this.with_file_name(self.name);
        let mut program = match beside.is_file() {
            true => Command::new(beside),
            false => Command::new(self.name),
        };
        program.arg0(started_as).args(arguments);
        if env::var_os(NODES).is_none() && self.name == LAB.name {
            program.env(NODES, &this);
        }
        let error = program.exec();
        match error.kind() {
            ErrorKind::NotFound => self.missing_in(this.parent().unwrap_or(Path::new("/"))),
            _ => anyhow!(error).context(format!("cannot start {}", self.name)),
        }
    }

    fn missing_in(&self, folder: &Path) -> anyhow::Error {
        let Program {
            name,
            folder: source,
            ..
        } = self;
        let package = self
            .package
            .map(|package| format!("the package {package} has it; "));
        anyhow!(
            "{name} is neither in {} nor in PATH: {}in Hawser's source tree, build it with `make build`, \
             or install it with `cargo install --path {source}`",
            folder.display(),
            package.unwrap_or_default()
        )
    }
}
