//! The REST interface: every route under `/v1`, and the OpenAPI document.

mod arrival;
mod audit;
mod enrol;
mod enrolments;
mod events;
pub(crate) mod extract;
mod filter;
mod flows;
pub(crate) mod health;
mod keys;
mod node;
mod nodes;
mod patch;
mod policies;
mod status;
mod tenants;
pub(crate) mod tokens;
mod topology;
mod tracks;
mod tunnel_settings;
mod tunnels;
mod version;

use crate::config::LimitsConfig;
use crate::controller::Controller;
use crate::refusal::Refusal;
use crate::token_use::TokenUse;
use arrival::Arrival;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hawser_model::API;
use hawser_model::node::Report;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum body size of a request that needs no authentication: a token and a certificate
/// signing request.
const ENROL_BYTES: usize = 16 * 1024;

/// The path of the OpenAPI document.
const DOCUMENT: &str = "/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Hawser controller",
        description = "Manages nodes, paths and flows, decides which paths each flow takes, and sends the decisions to the \
                       nodes. Operators authenticate by bearer token, nodes by client certificate."
    ),
    tags(
        (name = "operators", description = "For operators, who authenticate by token"),
        (name = "nodes", description = "For nodes, which authenticate by certificate"),
        (name = "service", description = "Health and metrics of the controller")
    )
)]
struct Document;

/// Returns all routes. Requests need a [`Peer`](crate::Peer) in their extensions.
pub fn router(controller: &Arc<Controller>) -> Router {
    let (routes, document) = documented(controller.config.limits.body_bytes).split_for_parts();
    // The document is serialized once, because unauthenticated clients may request it.
    let document = Bytes::from(completed(&document).to_string());
    let document = (
        [(CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        document,
    );
    let docs = utoipa_swagger_ui::SwaggerUi::new("/docs")
        .config(utoipa_swagger_ui::Config::new([DOCUMENT]));
    routes
        .route(DOCUMENT, get(move || async move { document.clone() }))
        .merge(docs)
        .fallback(|uri: Uri| async move { no_resource(uri.path()) })
        .method_not_allowed_fallback(|| async {
            let what = "this resource does not support the method; the header Allow lists the supported ones";
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, what)
        })
        .layer(from_fn_with_state(controller.clone(), tracked))
        .layer(from_fn(crate::request::identified))
        .with_state(controller.clone())
}

/// Returns the refusal of a path without a resource, which names both versions if the path is of
/// another version of the interface.
fn no_resource(path: &str) -> Refusal {
    let first = path.split('/').nth(1).unwrap_or_default();
    let number = first.strip_prefix('v').unwrap_or_default();
    let is_version = (1..=4).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    if is_version && first != API {
        return Refusal::not_found(format!(
            "the request is for the version {first} of the interface, and this controller, Hawser {}, has {API}: use the \
             same version of Hawser at both ends",
            env!("CARGO_PKG_VERSION")
        ));
    }
    Refusal::not_found("there is no such resource; /docs lists all resources")
}

/// Returns the OpenAPI 3.1 document of the interface.
pub fn document() -> Value {
    completed(&documented(LimitsConfig::default().body_bytes).into_openapi())
}

/// Adds the constraints that the generator omits.
fn completed(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("a document is JSON");
    limit_values(&mut document);
    close_input(&mut document);
    describe_responses(&mut document);
    document
}

/// Describes the responses that are not described otherwise: every response needs a description.
fn describe_responses(part: &mut Value) {
    let Value::Object(fields) = part else { return };
    if let Some(Value::Object(responses)) = fields.get_mut("responses") {
        for (status, response) in responses {
            let text = match status.as_str() {
                "201" => "Created",
                _ => "OK",
            };
            if let Value::Object(response) = response {
                response.entry("description").or_insert(text.into());
            }
        }
        return;
    }
    fields.values_mut().for_each(describe_responses);
}

/// Forbids additional fields in the bodies of operators' requests and in all that they contain.
fn close_input(document: &mut Value) {
    let mut open: Vec<String> = operations(document).filter_map(body_of_operator).collect();
    let mut closed = BTreeSet::new();
    while let Some(reference) = open.pop() {
        let Some(schema) = document.pointer_mut(reference.trim_start_matches('#')) else {
            continue;
        };
        if closed.insert(reference) {
            references(schema, &mut open);
            if let Value::Object(fields) = schema
                && fields.contains_key("properties")
            {
                fields.insert("additionalProperties".to_owned(), false.into());
            }
        }
    }
}

fn operations(document: &Value) -> impl Iterator<Item = &Value> {
    let paths = document["paths"].as_object().into_iter();
    let paths = paths.flat_map(serde_json::Map::values);
    let paths = paths.filter_map(Value::as_object);
    paths.flat_map(serde_json::Map::values)
}

/// Returns the reference to the schema of an operation's body, if it is for operators.
fn body_of_operator(operation: &Value) -> Option<String> {
    let tags = operation["tags"].as_array()?;
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let reference = schema["$ref"].as_str()?.to_owned();
    tags.contains(&"operators".into()).then_some(reference)
}

/// Adds the references of a schema to `found`.
fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            found.extend(reference.map(str::to_owned));
            fields.values().for_each(|part| references(part, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| references(part, found)),
        _ => {}
    }
}

/// Uses the formats of integers from the OpenAPI registry, and adds the maximum of each, which not
/// every tool derives from the format. Marks all items of fixed-length arrays as required.
fn limit_values(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            fields.values_mut().for_each(limit_values);
            if let Some(items) = fields
                .get("prefixItems")
                .and_then(Value::as_array)
                .map(Vec::len)
            {
                // The same as `items: false`, which not every generator of clients understands.
                fields.shift_remove("items");
                fields.insert("minItems".to_owned(), items.into());
                fields.insert("maxItems".to_owned(), items.into());
            }
            let format = fields.get("format").and_then(Value::as_str);
            if let Some((format, max)) = format.and_then(integer_format) {
                fields.insert("format".to_owned(), format.into());
                fields.entry("maximum").or_insert(max.into());
            }
        }
        Value::Array(parts) => parts.iter_mut().for_each(limit_values),
        _ => {}
    }
}

/// Returns the registered name of a format of integers, and the maximum of its values.
fn integer_format(generated: &str) -> Option<(&'static str, u64)> {
    match generated {
        "u-int8" => Some(("uint8", u8::MAX.into())),
        "u-int16" => Some(("uint16", u16::MAX.into())),
        "u-int32" => Some(("uint32", u32::MAX.into())),
        "u-int64" => Some(("uint64", u64::MAX)),
        _ => None,
    }
}

/// Returns the document without the routes.
fn empty_document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let components = document.components.get_or_insert_default();
    components
        .schemas
        .extend([crate::refusal::problem_schema()]);
    components.add_security_scheme(
        "token",
        SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
    );
    components.add_security_scheme(
        "certificate",
        SecurityScheme::MutualTls {
            description: None,
            deprecated: None,
            extensions: None,
        },
    );
    document
}

fn documented(body_bytes: usize) -> OpenApiRouter<Arc<Controller>> {
    let service = OpenApiRouter::new()
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics));
    OpenApiRouter::with_openapi(empty_document())
        .merge(sized(routes_of_operators(), body_bytes))
        .merge(routes_of_nodes(body_bytes))
        .merge(sized(service, body_bytes))
}

/// Refuses requests to these routes whose body is too large: if its size is declared, before anything else is
/// examined, and otherwise when it is read.
fn sized(
    routes: OpenApiRouter<Arc<Controller>>,
    max_bytes: usize,
) -> OpenApiRouter<Arc<Controller>> {
    let declared = move |request: Request, next: Next| async move {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > max_bytes as u64) {
            return extract::too_large().into_response();
        }
        next.run(request).await
    };
    routes
        .layer(DefaultBodyLimit::max(max_bytes))
        .layer(from_fn(declared))
}

fn routes_of_operators() -> OpenApiRouter<Arc<Controller>> {
    OpenApiRouter::new()
        .routes(routes!(tenants::list, tenants::create))
        .routes(routes!(tenants::show, tenants::change, tenants::delete))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show, nodes::change, nodes::delete))
        .routes(routes!(nodes::create_enrolment))
        .routes(routes!(keys::rekey))
        .routes(routes!(enrolments::list))
        .routes(routes!(enrolments::withdraw))
        .routes(routes!(tunnels::list))
        .routes(routes!(tunnel_settings::clients))
        .routes(routes!(
            tunnel_settings::show,
            tunnel_settings::set,
            tunnel_settings::delete
        ))
        .routes(routes!(nodes::paths))
        .routes(routes!(topology::topology))
        .routes(routes!(nodes::reports))
        .routes(routes!(nodes::latest_report))
        .routes(routes!(flows::list, flows::create))
        .routes(routes!(
            flows::show,
            flows::change,
            flows::patch,
            flows::delete
        ))
        .routes(routes!(status::flow_status))
        .routes(routes!(tracks::list, tracks::create))
        .routes(routes!(tracks::show, tracks::change, tracks::delete))
        .routes(routes!(tracks::rekey))
        .routes(routes!(tracks::sources))
        .routes(routes!(policies::list))
        .routes(routes!(
            policies::show,
            policies::override_policy,
            policies::release
        ))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(audit::list))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::delete))
        .routes(routes!(tokens::rotate))
        .routes(routes!(tokens::me))
        .routes(routes!(version::version))
        .routes(routes!(version::authority))
}

/// Returns the routes of nodes. Unauthenticated requests have a smaller limit of their body, reports
/// of nodes with many flows a larger one.
fn routes_of_nodes(body_bytes: usize) -> OpenApiRouter<Arc<Controller>> {
    let enrol = OpenApiRouter::new().routes(routes!(enrol::enrol));
    let report = OpenApiRouter::new().routes(routes!(node::report));
    let others = OpenApiRouter::new()
        .routes(routes!(enrol::renew, nodes::revoke))
        .routes(routes!(node::register))
        .routes(routes!(node::stream))
        .routes(routes!(keys::state))
        .routes(routes!(tracks::use_track))
        .routes(routes!(tunnels::report_server))
        .routes(routes!(tunnels::list_servers));
    OpenApiRouter::new()
        .merge(sized(enrol, ENROL_BYTES))
        .merge(sized(report, Report::MAX_BYTES))
        .merge(sized(others, body_bytes))
}

/// Counts every request, and aborts those that do not arrive in time.
async fn tracked(
    State(controller): State<Arc<Controller>>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("none".to_owned(), |path| path.as_str().to_owned());
    let timeout = controller.config.request_timeout();
    let (mut request, arrival) = Arrival::of(request);
    let used = TokenUse::default();
    request.extensions_mut().insert(used.clone());
    let response = tokio::time::timeout(timeout, next.run(request)).await;
    let mut response = response.unwrap_or_else(|_| late(&controller, &arrival).into_response());
    let took = started.elapsed();
    let status = response.status().as_u16();
    controller.metrics.request(&method, &route, status, took);
    tracing::debug!(%method, route, status, ?took);
    if response.status().is_success() {
        controller.note_use(&used);
    }
    arrival.discard_rest();
    protect(response.headers_mut());
    response
}

/// Returns the refusal of a request that took too long: because of its client if it has not arrived
/// in full, and because of the store otherwise.
fn late(controller: &Controller, arrival: &Arrival) -> Refusal {
    if arrival.is_complete() {
        controller.metrics.refused("slow_store");
        let what = "the controller's store does not respond in time; it is unknown whether a change was made, so read before you repeat it";
        return Refusal::unavailable(what);
    }
    controller.metrics.refused("slow_request");
    let what = "the request took too long to arrive; send it again";
    Refusal::new(StatusCode::REQUEST_TIMEOUT, what)
}

/// Forbids clients to store a response, and to guess its type.
fn protect(headers: &mut HeaderMap) {
    headers.insert(
        HeaderName::from_static("cache-control"),
        HeaderValue::from_static("no-store"),
    );
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_limits(part: &Value, place: &str) {
        match part {
            Value::Object(fields) => {
                let kind = fields.get("type").unwrap_or(&Value::Null);
                if *kind == "integer"
                    || kind
                        .as_array()
                        .is_some_and(|kinds| kinds.contains(&"integer".into()))
                {
                    assert!(
                        fields.contains_key("minimum") && fields.contains_key("maximum"),
                        "{place}: {part}"
                    );
                }
                fields
                    .iter()
                    .for_each(|(name, part)| has_limits(part, &format!("{place}/{name}")));
            }
            Value::Array(parts) => parts.iter().for_each(|part| has_limits(part, place)),
            _ => {}
        }
    }

    #[test]
    fn only_input_of_operators_forbids_additional_fields() {
        let document = document();
        let is_closed = |name: &str| {
            let schema = &document["components"]["schemas"][name];
            assert!(schema.is_object(), "{name}");
            schema["additionalProperties"] == false
        };
        for input in ["Flow", "Selector", "Trigger", "Pruning", "Track", "Tenant"] {
            assert!(is_closed(input), "{input}");
        }
        for other in ["Registration", "Report", "PathEnd", "Policy", "Token"] {
            assert!(!is_closed(other), "{other}");
        }
    }

    #[test]
    fn the_document_names_the_limits_of_integers_and_arrays() {
        let document = document();
        has_limits(&document, "");
        let after = &document["paths"]["/v1/events"]["get"]["parameters"][1]["schema"];
        assert_eq!(
            (&after["format"], &after["maximum"]),
            (&"uint64".into(), &u64::MAX.into())
        );
        let ports = &document["components"]["schemas"]["Selector"]["properties"]["source_ports"];
        assert_eq!(
            (&ports["minItems"], &ports["maxItems"]),
            (&2.into(), &2.into())
        );
    }
}
