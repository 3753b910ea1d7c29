use crate::output::Output;
use crate::text;
use anyhow::{Context, Result};
use clap::ValueEnum;
use hawser_client::OperatorClient;
use hawser_control::Name;
use hawser_control::access::{IssuedToken, NewSecret, NewToken, Scope, Token};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all tokens, without their secrets
    List,
    /// Create a token; its secret is shown only once
    Create {
        /// Name of the token, by which events and the audit log name its bearer
        token: Name,
        /// Rights of the token's bearer
        #[arg(long, value_enum, default_value_t = ScopeArg::Read)]
        scope: ScopeArg,
        /// The only tenant that the token's bearer can see [default: all]
        #[arg(long)]
        tenant: Option<Name>,
        /// Validity of the token, days [default: no end]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
        /// File for the secret, readable only by its owner; must not exist yet [default: standard
        /// output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Replace the secret of a token; the new one is shown only once
    Rotate {
        /// Name of the token
        token: Name,
        /// Time for which the present secret stays valid, hours
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=720))]
        overlap_hours: u32,
        /// Validity of the token from now on, days [default: no end]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
        /// File for the secret, readable only by its owner; must not exist yet [default: standard
        /// output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Delete a token; it can no longer be used
    Delete {
        /// Name of the token
        token: Name,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ScopeArg {
    /// Read
    Read,
    /// Change flows and policies, enrol and revoke nodes
    Operate,
    /// Also manage tenants and tokens
    Admin,
}

impl From<ScopeArg> for Scope {
    fn from(scope: ScopeArg) -> Scope {
        match scope {
            ScopeArg::Read => Scope::Read,
            ScopeArg::Operate => Scope::Operate,
            ScopeArg::Admin => Scope::Admin,
        }
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List => {
            let tokens = client.tokens().all().await?;
            let names = ["name", "scope", "tenant", "created", "expires", "used"];
            output.list(&tokens, &names, |token| {
                fields(token).into_iter().map(|(_, value)| value).collect()
            })
        }
        Command::Create {
            token,
            scope,
            tenant,
            days,
            out,
        } => {
            let token = NewToken {
                name: token.clone(),
                scope: (*scope).into(),
                tenant: tenant.clone(),
                valid_s: days.map(seconds),
            };
            let issued = client.create_token(&token).await?;
            hand_over(&issued, out.as_deref(), output)
        }
        Command::Rotate {
            token,
            overlap_hours,
            days,
            out,
        } => {
            let new = NewSecret {
                overlap_s: overlap_hours * 3600,
                valid_s: days.map(seconds),
            };
            let issued = client.rotate_token(token, &new).await?;
            hand_over(&issued, out.as_deref(), output)
        }
        Command::Delete { token } => {
            client.delete_token(token).await?;
            output.done(&format!("token {token} deleted"))
        }
    }
}

const fn seconds(days: u32) -> u32 {
    days * 24 * 3600
}

/// Writes the secret of a token to a file, or prints it.
fn hand_over(issued: &IssuedToken, out: Option<&Path>, output: Output) -> Result<()> {
    let Some(file) = out else {
        return output.changed(issued, &issued.secret);
    };
    write_secret(file, &issued.secret)?;
    let name = &issued.token.name;
    let text = format!("the secret of the token {name} is in {}", file.display());
    output.changed(
        &Stored {
            token: &issued.token,
            file,
        },
        &text,
    )
}

/// A token whose secret is in a file.
#[derive(Serialize)]
struct Stored<'a> {
    #[serde(flatten)]
    token: &'a Token,
    file: &'a Path,
}

/// Returns the fields of a token as names and values.
pub(crate) fn fields(token: &Token) -> Vec<(&'static str, String)> {
    let scope = match token.scope {
        Scope::Read => "read",
        Scope::Operate => "operate",
        Scope::Admin => "admin",
    };
    vec![
        ("name", token.name.to_string()),
        ("scope", scope.to_owned()),
        (
            "tenant",
            token
                .tenant
                .as_ref()
                .map_or_else(|| "all".to_owned(), Name::to_string),
        ),
        ("created", text::ago(token.created_unix_ms)),
        (
            "expires",
            text::or_none(token.expires_unix_ms.map(text::date)),
        ),
        ("used", text::or_none(token.used_unix_ms.map(text::ago))),
    ]
}

/// Writes a secret to a new file that only its owner can read.
pub(crate) fn write_secret(path: &Path, secret: &str) -> Result<()> {
    let write = || {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        writeln!(file, "{secret}")?;
        file.sync_all()
    };
    write().with_context(|| {
        format!(
            "cannot write {}; the secret is lost: create another token",
            path.display()
        )
    })
}
