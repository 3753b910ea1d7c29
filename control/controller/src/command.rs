//! The command line of the controller.

use clap::ValueEnum;
use std::path::PathBuf;

/// Decide the policies of flows, and assign flows to nodes
///
/// Manages nodes, paths and flows. Serves operators (`hawser ctl`, or curl) and agents over
/// HTTPS. SIGHUP makes it reload its configuration.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser controller --config controller.toml")]
pub struct Args {
    /// Configuration file (docs/controller.md explains every key)
    #[arg(long, value_name = "FILE", required_unless_present = "openapi")]
    pub config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check: bool,
    /// Print the OpenAPI document of the REST interface and exit
    #[arg(long, conflicts_with = "check")]
    pub openapi: bool,
    /// Mark the store as restored from a backup, so that nodes discard later policies, and exit
    #[arg(long, conflicts_with_all = ["check", "openapi"])]
    pub restored: bool,
    /// Replace the authority in three steps: add, switch, remove; says what to do in between
    #[arg(long, value_name = "STEP", conflicts_with_all = ["check", "openapi", "restored", "new_admin_token"])]
    pub rotate_authority: Option<AuthorityStep>,
    /// Replace the first operator's token, whose secret was lost, and exit
    #[arg(long, conflicts_with_all = ["check", "openapi", "restored"])]
    pub new_admin_token: bool,
}

/// A step of the replacement of the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuthorityStep {
    /// Make the next authority, which is trusted from now on
    Add,
    /// Issue certificates with the next authority
    Switch,
    /// Trust only the authority that issues certificates
    Remove,
}
