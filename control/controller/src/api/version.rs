use crate::access::Anyone;
use crate::controller::Controller;
use crate::refusal::CommonErrors;
use crate::store::Role;
use axum::Json;
use axum::extract::State;
use hawser_model::access::Authorities;
use hawser_model::answer::Version;
use std::sync::Arc;

/// Get the authorities that this controller trusts, and the one that issues certificates
#[utoipa::path(operation_id = "get_authority", get, path = "/v1/authority", tag = "operators", tag = "nodes", security(("token" = []), ("certificate" = [])),
    responses((status = 200, body = Authorities), CommonErrors))]
pub(super) async fn authority(
    State(controller): State<Arc<Controller>>,
    _caller: Anyone,
) -> Json<Authorities> {
    let authorities = controller.authority.authorities();
    Json(Authorities { authorities })
}

/// Get the version of the controller, and the name of the one that decides
#[utoipa::path(operation_id = "get_version", get, path = "/v1/version", tag = "operators", tag = "nodes", security(("token" = []), ("certificate" = [])),
    responses((status = 200, body = Version), CommonErrors))]
pub(super) async fn version(
    State(controller): State<Arc<Controller>>,
    _caller: Anyone,
) -> Json<Version> {
    let leader = match &*controller.role.borrow() {
        Role::Leader(leadership) => leadership.holds().then(|| controller.name.clone()),
        Role::Follower { leader } => leader.clone(),
    };
    Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        controller: controller.name.clone(),
        leader,
    })
}
