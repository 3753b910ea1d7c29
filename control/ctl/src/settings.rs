mod contexts;

pub(crate) use contexts::{Command as ContextCommand, run as run_context};

use anyhow::{Context, Result, bail};
use contexts::File;
use hawser_client::{Controller, OperatorClient};
use hawser_io::file;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The address of the controller and the operator's credentials. Arguments override the file.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection to the controller")]
pub(crate) struct ConnectionArgs {
    /// URL of the controller, https://HOST:PORT; several separated by commas, of which the first
    /// that responds is used
    #[arg(
        long,
        global = true,
        env = "HAWSER_CONTROLLER",
        value_name = "URL",
        value_delimiter = ','
    )]
    controller: Vec<Controller>,
    /// Certificate of the authority that signed the controller's certificate, PEM
    #[arg(long, global = true, env = "HAWSER_AUTHORITY", value_name = "FILE")]
    authority: Option<PathBuf>,
    /// File with the operator's token; must be readable only by its owner (mode 600)
    #[arg(long, global = true, env = "HAWSER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name of a controller in the configuration file, see `hawser ctl context` [default: the one
    /// in use]
    #[arg(long, global = true, env = "HAWSER_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    /// Configuration file with these settings [default: ~/.config/hawser/ctl.toml]
    #[arg(long, global = true, env = "HAWSER_CTL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The address of a controller and the credentials for it, in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    controllers: Vec<String>,
    authority: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl ConnectionArgs {
    /// Returns a client for the controller.
    pub(crate) fn client(&self) -> Result<OperatorClient> {
        let settings = self.settings()?;
        let controllers = self.controllers(&settings)?;
        let authority = self.authority.as_ref().or(settings.authority.as_ref());
        let authority = authority.ok_or_else(|| missing(&AUTHORITY))?;
        let token = self.token_file.as_ref().or(settings.token_file.as_ref());
        let token = token.ok_or_else(|| missing(&TOKEN))?;
        let authority = file::read_text(authority).with_context(|| {
            format!(
                "cannot read the authority's certificate {}; the controller has it in its state folder",
                authority.display()
            )
        })?;
        Ok(OperatorClient::new(
            &controllers,
            &authority,
            &read_token(token)?,
        )?)
    }

    fn controllers(&self, settings: &Settings) -> Result<Vec<Controller>> {
        let controllers = if self.controller.is_empty() {
            let urls = settings.controllers.iter();
            urls.map(|url| url.parse()).collect::<Result<_, _>>()?
        } else {
            self.controller.clone()
        };
        if controllers.is_empty() {
            return Err(missing(&CONTROLLER));
        }
        Ok(controllers)
    }

    /// Returns the settings of the context, with paths that are relative to the folder of the
    /// file. A context is never completed by another one, whose token would then be sent to the
    /// wrong controller.
    fn settings(&self) -> Result<Settings> {
        let Some((path, is_explicit)) = self.path() else {
            return Ok(Settings::default());
        };
        let file = File::read(&path, is_explicit)?;
        let settings = file.settings(self.context.as_deref())?;
        Ok(settings.beside(&path))
    }

    /// Returns the path of the configuration file, and whether it was given.
    fn path(&self) -> Option<(PathBuf, bool)> {
        match &self.config {
            Some(path) => Some((path.clone(), true)),
            None => Some((default_file()?, false)),
        }
    }
}

impl Settings {
    /// Returns the settings with paths that are relative to the folder of `path`.
    fn beside(self, path: &Path) -> Settings {
        let folder = path.parent().unwrap_or(Path::new("."));
        Settings {
            authority: self.authority.map(|file| folder.join(file)),
            token_file: self.token_file.map(|file| folder.join(file)),
            ..self
        }
    }
}

fn default_file() -> Option<PathBuf> {
    let folder = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let configuration =
        folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(configuration.join("hawser/ctl.toml"))
}

/// A setting that is required, and the ways to give it.
struct Required {
    name: &'static str,
    flag: &'static str,
    variable: &'static str,
    key: &'static str,
}

const CONTROLLER: Required = Required {
    name: "controller",
    flag: "--controller https://HOST:PORT",
    variable: "HAWSER_CONTROLLER",
    key: "controllers",
};

const AUTHORITY: Required = Required {
    name: "authority",
    flag: "--authority FILE",
    variable: "HAWSER_AUTHORITY",
    key: "authority",
};

const TOKEN: Required = Required {
    name: "token",
    flag: "--token-file FILE",
    variable: "HAWSER_TOKEN_FILE",
    key: "token_file",
};

fn missing(setting: &Required) -> anyhow::Error {
    let Required {
        name,
        flag,
        variable,
        key,
    } = setting;
    anyhow::anyhow!(
        "no {name} is configured: give {flag}, set {variable}, or write {key} into ~/.config/hawser/ctl.toml, as `hawser ctl context set` does"
    )
}

fn read_token(path: &Path) -> Result<String> {
    let token = file::read_secret(path)
        .map_err(|error| anyhow::anyhow!("the token file cannot be used: {error}"))?;
    if token.trim().is_empty() {
        bail!("the token file {} is empty", path.display());
    }
    Ok(token.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_names_files_beside_it_and_flags_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ctl.toml");
        fs::write(
            &path,
            "controllers = [\"https://a:1\"]\nauthority = \"ca.pem\"\n",
        )
        .unwrap();
        let connection = ConnectionArgs {
            config: Some(path.clone()),
            ..ConnectionArgs::default()
        };
        let settings = connection.settings().unwrap();
        assert_eq!(settings.authority, Some(folder.path().join("ca.pem")));
        let error = connection.client().unwrap_err().to_string();
        assert!(error.contains("--token-file"), "{error}");
        fs::write(&path, "controler = []").unwrap();
        assert!(format!("{:#}", connection.settings().unwrap_err()).contains("controllers"));
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "secret\n").unwrap();
        assert_eq!(read_token(file.path()).unwrap(), "secret\n");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            read_token(file.path())
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
    }
}
