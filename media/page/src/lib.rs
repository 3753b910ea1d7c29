//! The viewer's page, which programs serve over HTTP: the files that `web/build.sh` makes of `web/viewer` and
//! `web/decoder`, and the list of broadcasts that the page may show.
//!
//! Browsers take broadcasts from the MoQ servers of the program by WebTransport, and where there is none from this server
//! by WebSocket. The page has no secret. A viewer has it in the fragment of the address, which browsers do not send.

#[cfg(has_page)]
mod files;
#[cfg(not(has_page))]
#[path = "no_files.rs"]
mod files;

pub use files::IS_BUILT;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap,
    HeaderName, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use files::{DEMO_FILES, FILES};
use hawser_metrics::server;
use hawser_moq::Entrance;
use hawser_tls::{Identity, host_name, provider};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde::Serialize;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use zeroize::Zeroizing;

/// A file of the page: its name, its type and its bytes, compressed by gzip.
type File = (&'static str, &'static str, &'static [u8]);

/// The files of a page: the one at its root, and those besides the viewer's.
struct Content {
    root: &'static str,
    files: &'static [File],
}

static VIEWER: Content = Content {
    root: "index.html",
    files: &[],
};

static DEMO: Content = Content {
    root: "demo.html",
    files: DEMO_FILES,
};

/// A broadcast that the page may show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Broadcast {
    /// The name under which the MoQ server has it.
    pub name: String,
    /// The `https` address of that server, if browsers reach it over WebTransport.
    pub url: Option<String>,
    /// The fingerprint of its certificate, hexadecimal.
    pub certificate_sha256: Option<String>,
    /// The path at which other browsers receive it, by WebSocket.
    pub socket: Option<String>,
}

/// The broadcasts of a page.
trait Broadcasts: Clone + Send + Sync + 'static {
    /// Returns those of now.
    fn list(&self) -> Vec<Broadcast>;
    /// Returns the MoQ server with one, if this program has it.
    fn find(&self, name: &str) -> Option<&Entrance>;
}

impl Broadcasts for Arc<[Entrance]> {
    fn list(&self) -> Vec<Broadcast> {
        let listed = self.iter().map(|entrance| {
            let (address, certificate_sha256) = entrance.web_transport().unzip();
            Broadcast {
                name: entrance.name().to_owned(),
                url: address.map(|address| format!("https://{address}")),
                certificate_sha256,
                socket: Some(format!("moq/{}", entrance.name())),
            }
        });
        listed.collect()
    }

    fn find(&self, name: &str) -> Option<&Entrance> {
        self.iter().find(|entrance| entrance.name() == name)
    }
}

impl Broadcasts for Arc<[Broadcast]> {
    fn list(&self) -> Vec<Broadcast> {
        self.to_vec()
    }

    fn find(&self, _: &str) -> Option<&Entrance> {
        None
    }
}

/// A page that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The address at which it is served.
    pub address: SocketAddr,
    /// The scheme and the host of its links.
    origin: String,
}

impl Page {
    /// Serves the page at an address, in a thread of its own, with the broadcasts of these MoQ servers: their objects, which
    /// are encrypted, to everyone who reaches the address. If its port is 0, it gets a free one.
    ///
    /// Without an identity, it is served over plain HTTP. Who can change it on its way can have it give away the secret that
    /// is in its link, so `address` is a loopback address, or one of a network whose members may have the secret. There,
    /// browsers have no WebTransport.
    ///
    /// # Errors
    /// If the page is not built, the address is in use or not one of this machine, the identity cannot be used, or no thread
    /// can be started.
    pub fn serve_in_thread(
        address: SocketAddr,
        identity: Option<&Identity>,
        broadcasts: Vec<Entrance>,
    ) -> io::Result<Self> {
        let tls = identity.map(tls).transpose().map_err(io::Error::other)?;
        let (tls, name) = tls.unzip();
        // The certificate has browsers find out where a name leads.
        let served = tls.is_none().then_some(address.ip());
        let broadcasts: Arc<[Entrance]> = broadcasts.into();
        let router = router(&VIEWER, served, broadcasts, Router::new());
        let address = serve(address, router, tls)?;
        let origin = match name {
            None => format!("http://{address}"),
            Some(None) => format!("https://{address}"),
            Some(Some(name)) => format!("https://{name}:{}", address.port()),
        };
        Ok(Page { address, origin })
    }

    /// Returns the link to a broadcast. Its secret is in the fragment, which browsers do not send.
    pub fn link(&self, name: &str, secret: &[u8; 32]) -> Zeroizing<String> {
        let key = Zeroizing::new(hex::encode(secret));
        Zeroizing::new(format!("{}/#name={name}&key={}", self.origin, *key))
    }
}

/// Serves the page of the demonstration, which shows two broadcasts side by side, at a loopback address, in a thread of its
/// own. `routes` answer the requests of its buttons.
///
/// # Errors
/// As those of [`Page::serve_in_thread`].
pub fn serve_demo_in_thread(
    address: SocketAddr,
    broadcasts: Vec<Broadcast>,
    routes: Router,
) -> io::Result<SocketAddr> {
    let broadcasts: Arc<[Broadcast]> = broadcasts.into();
    let router = router(&DEMO, Some(address.ip()), broadcasts, routes);
    serve(address, router, None)
}

fn serve(
    address: SocketAddr,
    router: Router,
    tls: Option<Arc<ServerConfig>>,
) -> io::Result<SocketAddr> {
    if !IS_BUILT {
        let message = "this program was built without the viewer's page: run `make page`, then build it again";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    server::serve_router_in_thread(address, "page", router, tls)
}

/// Returns the configuration of a server with an identity, and the host name that its certificate has.
fn tls(identity: &Identity) -> Result<(Arc<ServerConfig>, Option<String>), hawser_tls::Error> {
    let chain = identity.chain();
    let name = chain.first().map(host_name).transpose()?.flatten();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, identity.key())?;
    Ok((Arc::new(config), name))
}

fn router(
    content: &'static Content,
    served: Option<IpAddr>,
    broadcasts: impl Broadcasts,
    routes: Router,
) -> Router {
    let (listed, found) = (broadcasts.clone(), broadcasts.clone());
    let index = get(async move || answer(axum::Json(listed.list()), &[]));
    let socket = get(
        async move |Path(name): Path<String>,
                    ConnectInfo(from): ConnectInfo<SocketAddr>,
                    request: Request| {
            match found.find(&name) {
                Some(entrance) => connect(entrance, from, request),
                None => StatusCode::NOT_FOUND.into_response(),
            }
        },
    );
    let file = async move |uri: Uri| match content.file(uri.path()) {
        Some(&(_, kind, bytes)) => {
            let headers = [(CONTENT_TYPE, kind), (CONTENT_ENCODING, "gzip")];
            answer((headers, bytes), &broadcasts.list())
        }
        None => StatusCode::NOT_FOUND.into_response(),
    };
    let router = routes
        .route("/broadcasts.json", index)
        .route("/moq/{*name}", socket)
        .fallback(file);
    router.layer(from_fn_with_state(served, refuse_others))
}

/// Connects a browser without WebTransport to a broadcast.
fn connect(entrance: &Entrance, from: SocketAddr, mut request: Request) -> Response {
    // A site of others may request WebSockets everywhere, and read what arrives.
    if !is_of_same_origin(request.headers()) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let request = Request::from_parts(request.into_parts().0, ());
    let Some(upgrade) = upgrade else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    match entrance.accept(&request, from) {
        Ok((response, client)) => {
            tokio::spawn(async move {
                if let Ok(connection) = upgrade.await {
                    client.serve(TokioIo::new(connection)).await;
                }
            });
            response.map(|()| Body::empty())
        }
        Err(status) => status.into_response(),
    }
}

/// Returns whether a request is of a page of this server.
fn is_of_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name)?.to_str().ok();
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, authority)| text(HOST) == Some(authority))
}

async fn refuse_others(
    State(served): State<Option<IpAddr>>,
    request: Request,
    next: Next,
) -> Response {
    match refusal(served, &request) {
        Some(status) => status.into_response(),
        None => next.run(request).await,
    }
}

/// Returns why a request is refused. One for another host than `served`, if there is one, is: a site whose name leads to this
/// machine could read the list otherwise. One that changes something is, unless it comes from a page of this host.
fn refusal(served: Option<IpAddr>, request: &Request) -> Option<StatusCode> {
    let host = request.headers().get(HOST);
    let host = host.and_then(|host| host.to_str().ok());
    if !host.is_some_and(|host| served.is_none_or(|served| is_host(host, served))) {
        return Some(StatusCode::MISDIRECTED_REQUEST);
    }
    let is_foreign = !request.method().is_safe() && !is_of_same_origin(request.headers());
    is_foreign.then_some(StatusCode::FORBIDDEN)
}

/// Returns whether a host, with or without port, is the address that is served, or also another name of this machine if that is a
/// loopback address.
fn is_host(host: &str, served: IpAddr) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = address.parse().ok();
    let is_own = name == "localhost" || address.is_some_and(|ip| ip.is_loopback());
    address == Some(served) || served.is_loopback() && is_own
}

impl Content {
    /// Returns the file at a path.
    fn file(&self, path: &str) -> Option<&'static File> {
        let name = match path.strip_prefix('/')? {
            "" => self.root,
            name => name,
        };
        let mut files = FILES.iter().chain(self.files);
        files.find(|(known, ..)| *known == name)
    }
}

/// Returns an answer with the headers that bind a browser: scripts are those of the page alone, and it connects to
/// nothing but its server and the servers of these broadcasts.
fn answer(content: impl IntoResponse, broadcasts: &[Broadcast]) -> Response {
    let servers = broadcasts.iter().filter_map(|of| of.url.as_ref());
    let servers: String = servers.map(|url| format!(" {url}")).collect();
    let policy = format!(
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; \
         img-src data:; connect-src 'self'{servers}; form-action 'none'; frame-ancestors 'self'; base-uri 'none'"
    );
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_SECURITY_POLICY, &policy),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use axum::routing::post;
    use hawser_moq::{Config, Server};
    use tower::ServiceExt;

    fn stage() -> Server {
        let config = Config::new("127.0.0.1:0".parse().unwrap(), "stage");
        Server::open(config).unwrap().0
    }

    async fn request(of: &Server, path: &str) -> Response {
        request_of(of, "127.0.0.1:14780", path).await
    }

    async fn request_of(of: &Server, host: &str, path: &str) -> Response {
        let request = axum::http::Request::get(path).header(HOST, host);
        let request = request.body(Body::empty()).unwrap();
        viewer(of).oneshot(request).await.unwrap()
    }

    fn viewer(of: &Server) -> Router {
        let broadcasts: Arc<[Entrance]> = [of.entrance().clone()].into();
        router(
            &VIEWER,
            Some([127, 0, 0, 1].into()),
            broadcasts,
            Router::new(),
        )
    }

    #[tokio::test]
    async fn a_page_of_another_host_reads_nothing() {
        let stage = stage();
        for (host, status) in [
            ("localhost:14780", StatusCode::OK),
            ("[::1]:14780", StatusCode::OK),
            ("rebound.example:14780", StatusCode::MISDIRECTED_REQUEST),
            ("127.0.0.1.example", StatusCode::MISDIRECTED_REQUEST),
        ] {
            let answer = request_of(&stage, host, "/broadcasts.json").await;
            assert_eq!(answer.status(), status, "{host}");
        }
    }

    #[tokio::test]
    async fn only_the_page_of_the_demonstration_presses_buttons() {
        for (origin, status) in [
            (Some("http://127.0.0.1:14780"), StatusCode::OK),
            (Some("http://127.0.0.1:8000"), StatusCode::FORBIDDEN),
            (Some("null"), StatusCode::FORBIDDEN),
            (None, StatusCode::FORBIDDEN),
        ] {
            let request = axum::http::Request::post("/press").header(HOST, "127.0.0.1:14780");
            let request = origin
                .into_iter()
                .fold(request, |request, origin| request.header(ORIGIN, origin));
            let request = request.body(Body::empty()).unwrap();
            let routes = Router::new().route("/press", post(async || ""));
            let broadcasts: Arc<[Broadcast]> = [].into();
            let router = router(&DEMO, Some([127, 0, 0, 1].into()), broadcasts, routes);
            let answer = router.oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{origin:?}");
        }
    }

    #[test]
    fn each_page_has_its_own_root() {
        let has_root = |content: &Content| content.file("/").map(|(name, ..)| *name);
        assert_eq!(has_root(&VIEWER), IS_BUILT.then_some("index.html"));
        assert_eq!(has_root(&DEMO), IS_BUILT.then_some("demo.html"));
        assert!(VIEWER.file("/demo.js").is_none());
    }

    #[test]
    fn a_page_of_a_network_is_reached_by_its_address_only() {
        let is_host = |host| is_host(host, "192.0.2.1".parse().unwrap());
        assert!(is_host("192.0.2.1:14780"));
        for other in ["192.0.2.2:14780", "localhost:14780", "127.0.0.1", "a@b", ""] {
            assert!(!is_host(other), "{other}");
        }
    }

    #[tokio::test]
    async fn a_websocket_is_for_the_page_only() {
        let stage = stage();
        let connect = async |origin: Option<&str>| {
            let request = axum::http::Request::get("/moq/stage").header(HOST, "127.0.0.1:14780");
            let request = origin
                .into_iter()
                .fold(request, |request, origin| request.header(ORIGIN, origin));
            let from: SocketAddr = "127.0.0.1:9".parse().unwrap();
            let router = viewer(&stage).layer(axum::Extension(ConnectInfo(from)));
            let request = request.body(Body::empty()).unwrap();
            router.oneshot(request).await.unwrap().status()
        };
        for other in [None, Some("http://127.0.0.1:80"), Some("null")] {
            assert_eq!(connect(other).await, StatusCode::FORBIDDEN, "{other:?}");
        }
        // A connection that is no real one cannot be upgraded.
        let own = connect(Some("http://127.0.0.1:14780")).await;
        assert_eq!(own, StatusCode::UPGRADE_REQUIRED);
    }

    #[tokio::test]
    async fn the_list_has_the_addresses_of_broadcasts() {
        let stage = stage();
        let answer = request(&stage, "/broadcasts.json").await;
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let expected = format!(
            r#"[{{"name":"stage","url":"https://{}","certificate_sha256":"{}","socket":"moq/stage"}}]"#,
            stage.local_address(),
            stage.fingerprint()
        );
        assert_eq!(bytes, expected);
    }

    #[tokio::test]
    async fn every_file_names_the_servers_that_the_page_may_reach() {
        let stage = stage();
        for (name, kind, _) in FILES {
            let answer = request(&stage, &format!("/{name}")).await;
            assert_eq!(answer.headers()[CONTENT_TYPE], *kind);
            assert_eq!(answer.headers()[CONTENT_ENCODING], "gzip");
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            let expected = format!("connect-src 'self' https://{};", stage.local_address());
            assert!(policy.contains(&expected), "{policy}");
        }
        let index = request(&stage, "/").await;
        assert_eq!(index.status() == StatusCode::OK, IS_BUILT);
    }

    #[tokio::test]
    async fn nothing_else_is_served() {
        let stage = stage();
        for path in [
            "/../Cargo.toml",
            "/.gitignore",
            "/index.html/",
            "//index.html",
            "/moq/",
        ] {
            let answer = request(&stage, path).await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[test]
    fn a_link_has_its_secret_in_the_fragment() {
        let page = Page {
            address: "127.0.0.1:14780".parse().unwrap(),
            origin: "http://127.0.0.1:14780".to_owned(),
        };
        let expected = format!("http://127.0.0.1:14780/#name=live&key={}", "ab".repeat(32));
        assert_eq!(*page.link("live", &[0xab; 32]), expected);
    }
}
