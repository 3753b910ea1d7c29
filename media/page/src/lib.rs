//! The viewer's page, which programs serve over HTTP: the files that `web/build.sh` makes of `web/viewer` and
//! `web/decoder`, and the list of broadcasts that the page may show.
//!
//! The page has no secret. A viewer has it in the fragment of the address, which browsers do not send.

#[cfg(has_page)]
mod files;
#[cfg(not(has_page))]
#[path = "no_files.rs"]
mod files;

pub use files::IS_BUILT;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use files::{DEMO_FILES, FILES};
use hawser_metrics::server;
use serde::Serialize;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// A file of the page: its name, its type and its bytes.
type File = (&'static str, &'static str, &'static [u8]);

/// A broadcast that the page may show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Broadcast {
    /// The name under which the MoQ server has it.
    pub name: String,
    /// The `https` address of that server.
    pub url: String,
    /// The fingerprint of its certificate, hexadecimal.
    pub certificate_sha256: String,
}

/// Serves the page at a loopback address, in a thread of its own. `broadcasts` are those at the time of a request.
///
/// # Errors
/// If the page is not built, the address is in use or not one of this machine, or no thread can be started.
pub fn serve_in_thread(
    address: SocketAddr,
    broadcasts: impl Fn() -> Vec<Broadcast> + Clone + Send + Sync + 'static,
) -> io::Result<SocketAddr> {
    serve(address, router(&VIEWER, broadcasts, Router::new()))
}

/// Serves the page of the demonstration, which shows two broadcasts side by side, as [`serve_in_thread`] serves that of a
/// viewer. `routes` answer the requests of its buttons.
///
/// # Errors
/// As those of [`serve_in_thread`].
pub fn serve_demo_in_thread(
    address: SocketAddr,
    broadcasts: impl Fn() -> Vec<Broadcast> + Clone + Send + Sync + 'static,
    routes: Router,
) -> io::Result<SocketAddr> {
    serve(address, router(&DEMO, broadcasts, routes))
}

fn serve(address: SocketAddr, router: Router) -> io::Result<SocketAddr> {
    if !IS_BUILT {
        let message = "this program was built without the viewer's page: run `make page`, then build it again";
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    server::serve_router_in_thread(address, "page", router)
}

/// A page: the file at its root, and its files besides those of the viewer.
struct Page {
    root: &'static str,
    files: &'static [File],
}

static VIEWER: Page = Page {
    root: "index.html",
    files: &[],
};

static DEMO: Page = Page {
    root: "demo.html",
    files: DEMO_FILES,
};

fn router(
    page: &'static Page,
    broadcasts: impl Fn() -> Vec<Broadcast> + Clone + Send + Sync + 'static,
    routes: Router,
) -> Router {
    let list = broadcasts.clone();
    let list = get(async move || answer(axum::Json(list()), &[]));
    let file = async move |uri: Uri| match page.file(uri.path()) {
        Some(&(_, kind, bytes)) => answer(([(CONTENT_TYPE, kind)], bytes), &broadcasts()),
        None => StatusCode::NOT_FOUND.into_response(),
    };
    let router = routes.route("/broadcasts.json", list).fallback(file);
    router.layer(from_fn(refuse_others))
}

async fn refuse_others(request: Request, next: Next) -> Response {
    match refusal(&request) {
        Some(status) => status.into_response(),
        None => next.run(request).await,
    }
}

/// Returns why a request is refused. One for another host is: a site whose name leads to this machine could read the list
/// otherwise. One that changes something is, unless it comes from a page of this host.
fn refusal(request: &Request) -> Option<StatusCode> {
    let header = |name| request.headers().get::<HeaderName>(name)?.to_str().ok();
    let Some(host) = header(HOST).filter(|host| is_loopback(host)) else {
        return Some(StatusCode::MISDIRECTED_REQUEST);
    };
    let origin = header(ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    let is_foreign = !request.method().is_safe() && origin != Some(host);
    is_foreign.then_some(StatusCode::FORBIDDEN)
}

/// Returns whether a host, with or without port, is a loopback address or `localhost`.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

impl Page {
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
    let servers: String = broadcasts.iter().map(|of| format!(" {}", of.url)).collect();
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
    use axum::body::{Body, to_bytes};
    use axum::routing::post;
    use tower::ServiceExt;

    fn stage() -> Vec<Broadcast> {
        vec![Broadcast {
            name: "stage".to_owned(),
            url: "https://127.0.0.1:14754".to_owned(),
            certificate_sha256: "5a".to_owned(),
        }]
    }

    async fn request(path: &str) -> Response {
        request_of("127.0.0.1:14780", path).await
    }

    async fn request_of(host: &str, path: &str) -> Response {
        let request = axum::http::Request::get(path).header(HOST, host);
        let request = request.body(Body::empty()).unwrap();
        let router = router(&VIEWER, stage, Router::new());
        router.oneshot(request).await.unwrap()
    }

    #[tokio::test]
    async fn only_the_page_of_the_demonstration_presses_buttons() {
        for (origin, status) in [
            (Some("http://127.0.0.1:14780"), StatusCode::OK),
            (Some("http://127.0.0.1:8000"), StatusCode::FORBIDDEN),
            (Some("null"), StatusCode::FORBIDDEN),
            (None, StatusCode::FORBIDDEN),
        ] {
            let mut request = axum::http::Request::post("/press").header(HOST, "127.0.0.1:14780");
            if let Some(origin) = origin {
                request = request.header(ORIGIN, origin);
            }
            let request = request.body(Body::empty()).unwrap();
            let routes = Router::new().route("/press", post(async || ""));
            let router = router(&DEMO, stage, routes);
            let answer = router.oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{origin:?}");
        }
    }

    #[test]
    fn each_page_has_its_own_root() {
        let has_root = |page: &Page| page.file("/").map(|(name, ..)| *name);
        assert_eq!(has_root(&VIEWER), IS_BUILT.then_some("index.html"));
        assert_eq!(has_root(&DEMO), IS_BUILT.then_some("demo.html"));
        assert!(VIEWER.file("/demo.js").is_none());
    }

    #[tokio::test]
    async fn a_page_of_another_host_reads_nothing() {
        for (host, status) in [
            ("localhost:14780", StatusCode::OK),
            ("[::1]:14780", StatusCode::OK),
            ("rebound.example:14780", StatusCode::MISDIRECTED_REQUEST),
            ("127.0.0.1.example", StatusCode::MISDIRECTED_REQUEST),
        ] {
            let answer = request_of(host, "/broadcasts.json").await;
            assert_eq!(answer.status(), status, "{host}");
        }
    }

    #[tokio::test]
    async fn the_list_has_the_broadcasts_of_now() {
        let answer = request("/broadcasts.json").await;
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let expected =
            r#"[{"name":"stage","url":"https://127.0.0.1:14754","certificate_sha256":"5a"}]"#;
        assert_eq!(bytes, expected);
    }

    #[tokio::test]
    async fn every_file_names_the_servers_that_the_page_may_reach() {
        for (name, kind, _) in FILES {
            let answer = request(&format!("/{name}")).await;
            assert_eq!(answer.headers()[CONTENT_TYPE], *kind);
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(
                policy.contains("connect-src 'self' https://127.0.0.1:14754;"),
                "{policy}"
            );
        }
        assert_eq!(request("/").await.status() == StatusCode::OK, IS_BUILT);
    }

    #[tokio::test]
    async fn nothing_else_is_served() {
        for path in [
            "/../Cargo.toml",
            "/.gitignore",
            "/index.html/",
            "//index.html",
        ] {
            assert_eq!(
                request(path).await.status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    }
}
