use crate::output::Output;
use crate::text;
use anyhow::{Context, Result};
use clap::ValueEnum;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::access::{IssuedToken, NewSecret, NewToken, Scope, Token};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List all tokens, without their secrets
    #[command(after_help = "Example: hawser ctl token list")]
    List,
    /// Create a token; its secret is shown only once
    #[command(
        after_help = "Example: hawser ctl token create ci --scope read --days 30 --out ci.token"
    )]
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
    #[command(after_help = "Example: hawser ctl token rotate ci --overlap-hours 24 --out ci.token")]
    Rotate {
        /// Name of the token
        token: Name,
        /// Time for which the present secret stays valid, hours
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=720))]
        overlap_hours: u32,
        /// Validity of the token from now on, days [default: its end stays]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: Option<u32>,
        /// File for the secret, readable only by its owner; must not exist yet [default: standard
        /// output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Delete a token; it can no longer be used
    #[command(after_help = "Example: hawser ctl token delete ci")]
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
            let file = out.as_deref().map(SecretFile::create).transpose()?;
            hand_over(&client.create_token(&token).await?, file, output)
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
            let file = out.as_deref().map(SecretFile::create).transpose()?;
            hand_over(&client.rotate_token(token, &new).await?, file, output)
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
fn hand_over(issued: &IssuedToken, out: Option<SecretFile<'_>>, output: Output) -> Result<()> {
    let Some(out) = out else {
        return output.changed(issued, &issued.secret);
    };
    let file = out.path();
    out.fill(&issued.secret)?;
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

/// A new file for a secret, readable only by its owner. It is made, with room for the secret, before the secret is
/// asked for, so that a secret is not lost because its file cannot be written. Removed unless it is filled.
pub(crate) struct SecretFile<'a> {
    path: &'a Path,
    file: fs::File,
    is_filled: bool,
}

impl<'a> SecretFile<'a> {
    /// Bytes that are enough for a secret or a token of an enrolment.
    const ROOM: usize = 1024;

    /// Creates the file.
    ///
    /// # Errors
    ///
    /// The file exists or cannot be written.
    pub(crate) fn create(path: &'a Path) -> Result<SecretFile<'a>> {
        let context = || format!("cannot write {}; nothing was changed", path.display());
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(path).with_context(context)?;
        let is_filled = false;
        let secret = SecretFile {
            path,
            file,
            is_filled,
        };
        let room = [b'\n'; Self::ROOM];
        let reserve = || {
            secret
                .file
                .write_all_at(&room, 0)
                .and_then(|()| secret.file.sync_all())
        };
        reserve().with_context(context)?;
        Ok(secret)
    }

    /// Returns the name of the file.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Writes the secret.
    ///
    /// # Errors
    ///
    /// The file cannot be written: the secret is lost.
    pub(crate) fn fill(mut self, secret: &str) -> Result<()> {
        let text = format!("{secret}\n");
        let write = || {
            self.file.write_all_at(text.as_bytes(), 0)?;
            self.file.set_len(text.len() as u64)?;
            self.file.sync_all()
        };
        write().with_context(|| {
            let path = self.path.display();
            format!("cannot write {path}; the secret is lost: ask for another one")
        })?;
        self.is_filled = true;
        Ok(())
    }
}

impl Drop for SecretFile<'_> {
    fn drop(&mut self) {
        if !self.is_filled {
            // Without its secret, nothing is lost if an empty file stays.
            let _ = fs::remove_file(self.path);
        }
    }
}
