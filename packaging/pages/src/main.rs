//! Writes the manual pages and the completions of `hawser` and `hawser-ctl` for the packages: `hawser-pages FOLDER`. Pages go
//! to `man`, completions to a folder with the name of the shell.

#[cfg(test)]
mod advice;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.context("usage: hawser-pages FOLDER")?;
    let written = write(&folder);
    written.with_context(|| format!("cannot write to {}", folder.display()))
}

fn write(folder: &Path) -> Result<()> {
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(hawser(), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let scripts = folder.join(shell.to_string());
        fs::create_dir_all(&scripts)?;
        for mut program in [
            hawser(),
            hawser_service::command::<hawser_ctl::Args>("hawser-ctl"),
        ] {
            let name = program.get_name().to_owned();
            clap_complete::generate_to(shell, &mut program, name, &scripts)?;
        }
    }
    Ok(())
}

/// Returns the command line of `hawser` with the commands that other programs have. The lab is not a part of the packages.
fn hawser() -> Command {
    let agent = hawser_agent::CommandLine::augment_args(Command::new("agent"));
    let media = hawser_media::Args::augment_args(Command::new("media"));
    let parts = [
        (&agent, &["status", "enrol"][..]),
        (&media, &["publish", "relay", "view", "serve", "fetch"]),
    ];
    let mut commands = vec![
        hawser_controller::Args::augment_args(Command::new("controller")),
        hawser_ctl::Args::augment_args(Command::new("ctl")),
        hawser_tunnel::Args::augment_args(Command::new("tunnel")),
    ];
    for (program, names) in parts {
        let of_program = program.get_subcommands();
        commands.extend(
            of_program
                .filter(|part| names.contains(&part.get_name()))
                .cloned(),
        );
    }
    commands.push(agent);
    let hawser = commands.into_iter().fold(hawser::command(), with);
    let hidden = ["help", "lab"].map(|name| Command::new(name).hide(true));
    hidden.into_iter().fold(hawser, with)
}

/// Returns a program with this command in place of the one of the same name.
fn with(program: Command, command: Command) -> Command {
    let name = command.get_name().to_owned();
    program.mut_subcommand(name, |_| command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let page = |name: &str| fs::read_to_string(folder.path().join("man").join(name));
        for name in [
            "hawser.1",
            "hawser-agent.1",
            "hawser-doctor.1",
            "hawser-keygen.1",
            "hawser-publish.1",
            "hawser-ctl.1",
            "hawser-ctl-flow-describe.1",
        ] {
            let text = page(name).unwrap();
            assert!(
                text.starts_with('.') && text.contains(".SH SYNOPSIS"),
                "{name}"
            );
        }
        assert!(
            page("hawser-ctl-flow-create.1")
                .unwrap()
                .contains("ingress")
        );
        assert!(page("hawser-lab.1").is_err() && page("hawser-help.1").is_err());
        assert!(!page("hawser.1").unwrap().contains("lab(1)"));
    }

    /// Returns a command and those below it.
    fn all(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands();
        let below = below.filter(|below| !below.is_hide_set());
        std::iter::once(command)
            .chain(below.flat_map(all))
            .collect()
    }

    #[test]
    fn every_help_ends_with_an_example_that_is_valid() {
        for command in all(&hawser()) {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_else(|| panic!("{name} has no example"));
            let example = help.strip_prefix("Example: ").expect(name);
            let parsed = hawser().try_get_matches_from(example.split(' '));
            parsed.unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }

    #[test]
    fn the_same_options_are_everywhere() {
        for command in all(&hawser()) {
            let options = command.get_arguments();
            let options: Vec<&str> = options.filter_map(|option| option.get_long()).collect();
            let expected = match command.get_name() {
                "doctor" | "ctl" => continue,
                "status" => &["config", "watch", "json"][..],
                _ if options.contains(&"config") => &["check"],
                _ => continue,
            };
            for option in expected {
                assert!(
                    options.contains(option),
                    "{}: --{option}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn shells_complete_every_program() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for scripts in ["bash/NAME.bash", "zsh/_NAME", "fish/NAME.fish"] {
            let script = |name: &str| {
                let file = folder.path().join(scripts.replace("NAME", name));
                fs::read_to_string(file).unwrap()
            };
            let hawser = script("hawser");
            assert!(hawser.contains("whoami") && hawser.contains("keygen"));
            assert!(script("hawser-ctl").contains("whoami"));
        }
    }
}
