use anyhow::{Context, Result, bail};
use hawser_client::{Controller, OperatorClient};
use serde::Deserialize;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bits of a file's mode by which others than its owner can use it.
const OTHERS: u32 = 0o077;

/// Where the controller is, and by what it knows the operator. What is given here comes before the file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Where the controller is")]
pub(crate) struct Place {
    /// https://HOST:PORT; several with commas between them, of which the first that answers is asked
    #[arg(
        long,
        global = true,
        env = "HAWSER_CONTROLLER",
        value_name = "URL",
        value_delimiter = ','
    )]
    controller: Vec<Controller>,
    /// The certificate of the authority that signed the controller's, PEM
    #[arg(long, global = true, env = "HAWSER_AUTHORITY", value_name = "FILE")]
    authority: Option<PathBuf>,
    /// Holds the operator's token; for its owner alone (mode 600)
    #[arg(long, global = true, env = "HAWSER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Holds all of this [default: ~/.config/hawser/ctl.toml]
    #[arg(long, global = true, env = "HAWSER_CTL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The same in a file. Paths in it are relative to it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    controllers: Vec<String>,
    authority: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

impl Place {
    /// A client for the controller there.
    pub(crate) fn client(&self) -> Result<OperatorClient> {
        let file = self.file()?;
        let controllers = if self.controller.is_empty() {
            file.controllers
                .iter()
                .map(|url| url.parse())
                .collect::<Result<Vec<Controller>, _>>()?
        } else {
            self.controller.clone()
        };
        if controllers.is_empty() {
            return Err(missing(
                "controller",
                "--controller https://HOST:PORT",
                "HAWSER_CONTROLLER",
                "controllers",
            ));
        }
        let authority = self.authority.as_ref().or(file.authority.as_ref());
        let authority = authority.ok_or_else(|| {
            missing(
                "authority",
                "--authority FILE",
                "HAWSER_AUTHORITY",
                "authority",
            )
        })?;
        let token = self.token_file.as_ref().or(file.token_file.as_ref());
        let token = token.ok_or_else(|| {
            missing(
                "token",
                "--token-file FILE",
                "HAWSER_TOKEN_FILE",
                "token_file",
            )
        })?;
        let authority = fs::read_to_string(authority).with_context(|| {
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

    fn file(&self) -> Result<File> {
        let (path, is_chosen) = match &self.config {
            Some(path) => (path.clone(), true),
            None => match default_file() {
                Some(path) => (path, false),
                None => return Ok(File::default()),
            },
        };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !is_chosen => {
                return Ok(File::default());
            }
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut file: File = toml::from_str(&text)
            .with_context(|| format!("{} is not as docs/ctl.md says", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        for relative in [&mut file.authority, &mut file.token_file]
            .into_iter()
            .flatten()
        {
            *relative = folder.join(&relative);
        }
        Ok(file)
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

fn missing(what: &str, flag: &str, variable: &str, key: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "no {what} is named: give {flag}, set {variable}, or write {key} into ~/.config/hawser/ctl.toml"
    )
}

fn read_token(path: &Path) -> Result<String> {
    let named = || format!("cannot read the token {}", path.display());
    if fs::metadata(path).with_context(named)?.mode() & OTHERS != 0 {
        bail!(
            "others can read the token {0}: run chmod 600 {0}",
            path.display()
        );
    }
    let token = fs::read_to_string(path).with_context(named)?;
    if token.trim().is_empty() {
        bail!("the token {} is empty", path.display());
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let place = Place {
            controller: Vec::new(),
            authority: None,
            token_file: None,
            config: Some(path.clone()),
        };
        let file = place.file().unwrap();
        assert_eq!(file.authority, Some(folder.path().join("ca.pem")));
        let error = place.client().unwrap_err().to_string();
        assert!(error.contains("--token-file"), "{error}");
        fs::write(&path, "controler = []").unwrap();
        assert!(format!("{:#}", place.file().unwrap_err()).contains("controllers"));
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
