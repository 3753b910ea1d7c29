//! A controller from its start to its end.

use crate::api;
use crate::audit::Origin;
use crate::authority::{Authority, write_private};
use crate::config::{Config, EtcdConfig, StoreConfig};
use crate::controller::{About, Controller};
use crate::record::{key, random_hex, unix_ms};
use crate::store::{Election, Embedded, Error, Etcd, EtcdSettings, EtcdTls, Expect, Store, Write};
use crate::{leader, listener};
use anyhow::{Context, Result, bail, ensure};
use hawser_control::access::{Scope, Token};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name and the file of the first token.
const FIRST_TOKEN: &str = "admin";
const FIRST_TOKEN_FILE: &str = "admin.token";

/// How long the store may take to answer at the start.
const STORE_WITHIN: Duration = Duration::from_secs(30);

/// How long one of its answers may take.
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// A controller that runs.
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    state: PathBuf,
    controller: Arc<Controller>,
    election: Election,
    /// Names and addresses for its certificate, which is made again for each new list.
    names: watch::Sender<Vec<String>>,
    serving: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a controller on the current tokio runtime. When this returns, it answers.
    ///
    /// # Errors
    /// When its address, its files or its store cannot be used; the text says what to do.
    pub async fn start(config: Config) -> Result<Server> {
        config.check()?;
        // Makes the folder that the store is in.
        let authority = Authority::open(&config.state)?;
        let store = open_store(&config).await?;
        Server::serve(store, authority, config).await
    }

    /// As [`Server::start`], on a store that is open already; several controllers may share it.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn start_on(store: Arc<dyn Store>, config: Config) -> Result<Server> {
        config.check()?;
        let authority = Authority::open(&config.state)?;
        Server::serve(store, authority, config).await
    }

    async fn serve(store: Arc<dyn Store>, authority: Authority, config: Config) -> Result<Server> {
        let state = config.state.clone();
        share_authority(&*store, &authority, &state).await?;

        let name = config
            .name
            .clone()
            .unwrap_or_else(|| format!("controller-{}", random_hex::<4>()));
        // The store takes a moment to notice that a leader's lease ran out, and the next one to look at everything: within
        // the lease of nodes somebody decides again.
        let election = Election::start(store.clone(), key::LEADER, &name, config.lease() * 2 / 3);
        let (controller, work) = Controller::new(name, config, store, authority, election.role());
        let mut background = vec![tokio::spawn(controller.clone().follow())];
        tokio::time::timeout(STORE_WITHIN, controller.filled())
            .await
            .context("the store did not answer; see the log")?;
        background.push(tokio::spawn(leader::run(controller.clone(), work)));
        background.push(tokio::spawn(controller.clone().remember_seen_often()));
        make_first_token(&controller).await?;

        let (listener, address) = bind(controller.config.listen).await?;
        let router = api::router(&controller);
        let names = watch::Sender::new(controller.config.names.clone());
        let tls = listener::tls(&controller, names.subscribe())?;
        let serving = tokio::spawn(listener::serve(controller.clone(), listener, tls, router));
        let metrics_address = match controller.config.metrics_listen {
            None => None,
            Some(wanted) => {
                let (listener, address) = bind(wanted).await?;
                let router = api::health::plain_router(&controller);
                background.push(tokio::spawn(async move {
                    if let Err(error) = axum::serve(listener, router).await {
                        tracing::error!("metrics are not served any more: {error}");
                    }
                }));
                Some(address)
            }
        };
        tracing::info!(name = controller.name, %address, "answers");
        Ok(Server {
            address,
            metrics_address,
            state,
            controller,
            election,
            names,
            serving,
            background,
        })
    }

    /// Where it listens; the port is the one that the system chose when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where metrics and health are without TLS.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The certificate of its authority, PEM: what clients have to trust.
    pub fn authority_pem(&self) -> &str {
        self.controller.authority.pem()
    }

    /// The file with the first operator's token, if this controller made it.
    pub fn first_token_file(&self) -> PathBuf {
        self.state.join(FIRST_TOKEN_FILE)
    }

    /// What its [`router`](crate::api::router) works with.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Whether this controller decides at the moment.
    pub fn leads(&self) -> bool {
        self.controller.role.borrow().leadership().is_some()
    }

    /// Makes the server's certificate again with the names of a configuration, and says so when that has more that differs:
    /// the rest takes effect after a restart.
    pub fn reload(&self, config: &Config) {
        let running = &self.controller.config;
        if (Config {
            names: running.names.clone(),
            ..config.clone()
        }) != *running
        {
            tracing::warn!(
                "of the configuration, only `names` is taken over; the rest needs a restart"
            );
        }
        self.names.send_replace(config.names.clone());
    }

    /// Ends it: streams are told, requests finish, the leadership is given up.
    pub async fn stop(self) {
        self.controller.ending.send_replace(true);
        if let Err(error) = self.serving.await {
            tracing::error!("the server ended badly: {error}");
        }
        match tokio::time::timeout(STORE_ANSWERS_WITHIN, self.controller.remember_seen()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("the times of the last reports are not written: {error}")
            }
            Err(_) => {
                tracing::warn!(
                    "the times of the last reports are not written: the store does not answer"
                )
            }
        }
        for task in self.background {
            task.abort();
            // It was aborted; there is nothing to know.
            let _ = task.await;
        }
        self.election.resign().await;
    }
}

async fn bind(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(wanted)
        .await
        .with_context(|| format!("cannot listen on {wanted}"))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn open_store(config: &Config) -> Result<Arc<dyn Store>> {
    match &config.store {
        StoreConfig::Embedded => {
            let file = config.state.join("database");
            let store = tokio::task::spawn_blocking(move || Embedded::open(file)).await??;
            Ok(Arc::new(store))
        }
        StoreConfig::Etcd(etcd) => Ok(Arc::new(Etcd::connect(settings(etcd)?).await?)),
    }
}

fn settings(etcd: &EtcdConfig) -> Result<EtcdSettings> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let identity = match (&etcd.certificate, &etcd.key) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        (None, None) => None,
        _ => bail!("store: `certificate` and `key` go together"),
    };
    let tls = match &etcd.authority {
        Some(authority) => Some(EtcdTls {
            authority: read(authority)?,
            identity,
        }),
        None => {
            ensure!(
                identity.is_none(),
                "store: a certificate needs the cluster's `authority` too"
            );
            None
        }
    };
    let user = match (&etcd.user, &etcd.password_file) {
        (Some(user), Some(file)) => Some((user.clone(), read(file)?.trim_end().to_owned())),
        (None, None) => None,
        _ => bail!("store: `user` and `password_file` go together"),
    };
    let (endpoints, prefix) = (etcd.endpoints.clone(), etcd.prefix.clone());
    Ok(EtcdSettings {
        endpoints,
        prefix,
        user,
        tls,
        timeout: STORE_ANSWERS_WITHIN,
    })
}

/// All controllers of a store have one authority: the first one's.
async fn share_authority(store: &dyn Store, authority: &Authority, state: &Path) -> Result<()> {
    let digest = authority.digest();
    let write = Write::put(key::AUTHORITY, digest.as_bytes()).when(Expect::Absent);
    match store.commit(vec![write]).await {
        Ok(_) => Ok(()),
        Err(Error::Conflict { .. }) => {
            let known = store.get(key::AUTHORITY).await?;
            ensure!(
                known.is_some_and(|known| *known.value == *digest.as_bytes()),
                "the store belongs to controllers of another authority: copy authority.pem and authority.key from one of \
                 them to {}",
                state.display()
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// While there is no token, nobody could make one.
async fn make_first_token(controller: &Controller) -> Result<()> {
    if !controller.view().tokens.is_empty() {
        return Ok(());
    }
    let name = FIRST_TOKEN.parse().expect("it is a name");
    let token = Token {
        name,
        scope: Scope::Admin,
        tenant: None,
        created_unix_ms: unix_ms(),
    };
    let issued = api::tokens::issue(token);
    let file = controller.config.state.join(FIRST_TOKEN_FILE);
    // First the file: a token that nobody knows would lock everybody out.
    write_private(&file, &format!("{}\n", issued.secret))?;
    let message = format!("{} made the first token", controller.name);
    let about = About::default().by(Origin::controller(&controller.name).makes(&issued.token.name));
    match controller
        .commit(
            vec![api::tokens::put(&issued)],
            about,
            "token_created",
            message,
        )
        .await
    {
        Ok(_) => {
            tracing::info!(file = %file.display(), "made the first operator's token");
            Ok(())
        }
        // Another controller made it at the same time, and its file has it.
        Err(Error::Conflict { .. }) => {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
        }
        Err(error) => Err(error.into()),
    }
}
