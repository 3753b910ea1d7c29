use super::extract::{Body, Message, PageQuery, Path};
use super::filter::{Filtered, OwnerFilter};
use super::tenants::{Created, Creation};
use crate::access::{Certified, Operate, Operator, Peer, Read, Sight};
use crate::audit::Origin;
use crate::check;
use crate::controller::{About, Controller};
use crate::limit::Checked;
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged};
use crate::problem::Kind;
use crate::record::{TrackRecord, emit, key};
use crate::reference;
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Revision, Write};
use crate::view::{Versioned, View};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use hawser_model::Name;
use hawser_model::answer::Page;
use hawser_model::track::{Track, TrackKey, TrackRole, TrackSource, TrackUse};
use std::sync::Arc;

/// The maximum number of nodes that one request may add, because each takes two writes of a commit.
const MAX_NEW: usize = 40;

/// List tracks, ordered by name
#[utoipa::path(operation_id = "list_tracks", get, path = "/v1/tracks", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<Track>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<Track>>, HandlerError> {
    let view = controller.view();
    let tracks = view
        .tracks
        .range::<str, _>(query.range())
        .map(|(name, record)| (name, record.value.track.clone()));
    Ok(Json(query.page(tracks.filter(|(_, track)| {
        operator.sees(&track.tenant) && filter.admits(&track.tenant, track.members())
    }))?))
}

/// Get a track
#[utoipa::path(operation_id = "get_track", get, path = "/v1/tracks/{track}", tag = "operators", params(("track" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Track, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Track>, HandlerError> {
    let record = controller.track_of(&operator, &name)?;
    Ok(Tagged(record.revision, record.value.track))
}

/// Create a track with a new secret, which its writers and readers get
#[utoipa::path(operation_id = "create_track", post, path = "/v1/tracks", tag = "operators", request_body = Track, security(("token" = [])),
    responses((status = 201, body = Track, headers(("ETag" = String, description = "Its revision, for `If-Match`"))),
        (status = 200, body = Track, description = "It exists with this content; nothing was changed"), CommonErrors, BodyErrors, NotFoundError, ConflictError))]
pub(super) async fn create(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    Body(track): Body<Track>,
) -> Result<Created<Track>, HandlerError> {
    operator.must_be_of(&track.tenant)?;
    check::track(&track).map_err(Refusal::meaningless)?;
    let creation = controller
        .retrying(|| try_create(&controller, &operator, &track))
        .await?;
    Ok(creation.response(format!("/v1/tracks/{}", track.name), track))
}

async fn try_create(
    controller: &Controller,
    operator: &Operator<Operate>,
    track: &Track,
) -> Result<Creation, HandlerError> {
    let name = &track.name;
    let known = controller.view().tracks.get(name).cloned();
    if let Some(Versioned { value, revision }) = known {
        check_same(&value.track, track)?;
        let key = key::of(key::TRACK, name);
        controller.still(&operator.checked, key, revision).await?;
        return Ok(Creation::Before(revision));
    }
    let writes = {
        let view = controller.view();
        let record = emit(&TrackRecord::of(track.clone()));
        let mut writes = vec![Write::put(key::of(key::TRACK, name), record).when(Expect::Absent)];
        writes.extend(references(&view, track, None)?);
        writes
    };
    let message = format!("{} created the track {name}", operator.token.name);
    let about = About::tenant(&track.tenant).by(operator.origin.makes(name));
    let revision = controller
        .commit(&operator.checked, writes, about, "track_created", message)
        .await?;
    Ok(Creation::New(revision))
}

/// Rejects the creation of a track of which there is another one.
fn check_same(known: &Track, new: &Track) -> Result<(), Refusal> {
    let name = &new.name;
    if known.tenant != new.tenant {
        return Err(Refusal::taken(name, &new.tenant));
    }
    if known != new {
        let what = format!(
            "the track {name} already exists with other content; PUT /v1/tracks/NAME changes it"
        );
        return Err(Refusal::conflict(what).kind(Kind::AlreadyExists));
    }
    Ok(())
}

/// Change the writers, readers and relays of a track
///
/// The secret is replaced if a node is removed, or may do less than before.
#[utoipa::path(operation_id = "replace_track", put, path = "/v1/tracks/{track}", tag = "operators", params(("track" = Name, Path), IfMatchHeader), request_body = Track, security(("token" = [])),
    responses((status = 200, body = Track, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn change(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    Body(track): Body<Track>,
) -> Result<Tagged<Track>, HandlerError> {
    check::track(&track).map_err(Refusal::meaningless)?;
    let sight = controller.sight_of_track(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let revision = controller
        .retrying(|| try_change(&controller, &operator, &matching, &name, &track))
        .await?;
    Ok(Tagged(revision, track))
}

async fn try_change(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
    new: &Track,
) -> Result<Revision, HandlerError> {
    let Versioned { value, revision } = controller.track_of(operator, name)?;
    matching.check(revision)?;
    let old = &value.track;
    if (&new.name, &new.tenant) != (&old.name, &old.tenant) {
        let what =
            "name and tenant of a track cannot be changed; delete it and create another track";
        return Err(Refusal::meaningless(what).into());
    }
    let read = Expect::Revision(revision);
    if new == old {
        let key = key::of(key::TRACK, name);
        controller.still(&operator.checked, key, revision).await?;
        return Ok(revision);
    }
    let references = references(&controller.view(), new, Some(old))?;
    let may =
        |track: &Track, node: &Name, role| track.role(node).is_some_and(|of| of.includes(role));
    let is_limited = |node: &Name| {
        let may_less = |role| may(old, node, role) && !may(new, node, role);
        may_less(TrackRole::Reader) || may_less(TrackRole::Relay)
    };
    let mut record = TrackRecord {
        track: new.clone(),
        ..value.clone()
    };
    let is_anyone_limited = old.members().any(is_limited);
    if is_anyone_limited {
        record.rekey();
    }
    let mut writes = vec![Write::put(key::of(key::TRACK, name), emit(&record)).when(read)];
    writes.extend(references);
    let also = if is_anyone_limited {
        " and replaced its secret"
    } else {
        ""
    };
    let message = format!("{} changed the track {name}{also}", operator.token.name);
    let about = About::tenant(&new.tenant).by(operator.origin.changes(name, revision));
    Ok(controller
        .commit(&operator.checked, writes, about, "track_changed", message)
        .await?)
}

/// Delete a track; its writers, readers and relays stop within seconds
#[utoipa::path(operation_id = "delete_track", delete, path = "/v1/tracks/{track}", tag = "operators", params(("track" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Deleted"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = controller.sight_of_track(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (controller, operator, matching, name) = (&*controller, &operator, &matching, &name);
    controller
        .retrying(|| async move {
            let Versioned { value, revision } = controller.track_of(operator, name)?;
            matching.check(revision)?;
            let write = Write::delete(key::of(key::TRACK, name)).when(Expect::Revision(revision));
            let message = format!("{} deleted the track {name}", operator.token.name);
            let by = operator.origin.removes(name, revision);
            let about = About::tenant(&value.track.tenant).by(by);
            controller
                .commit(
                    &operator.checked,
                    vec![write],
                    about,
                    "track_deleted",
                    message,
                )
                .await?;
            Ok(StatusCode::NO_CONTENT)
        })
        .await
}

/// Replace the secret of a track
///
/// Its writers end the sessions with the old secret as soon as they know the new one, within
/// seconds; its readers open new ones.
#[utoipa::path(operation_id = "rekey_track", post, path = "/v1/tracks/{track}/rekey", tag = "operators", params(("track" = Name, Path)), security(("token" = [])),
    responses((status = 204, description = "Replaced"), CommonErrors, NotFoundError, ConflictError))]
pub(super) async fn rekey(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    controller.track_of(&operator, &name)?;
    let by = operator.token.name.as_str();
    controller
        .replace_secret(&name, &operator.checked, &operator.origin, by)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List those who serve a track at present, ordered by node
#[utoipa::path(operation_id = "list_track_sources", get, path = "/v1/tracks/{track}/sources", tag = "operators", params(("track" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Page<TrackSource>), CommonErrors, NotFoundError))]
pub(super) async fn sources(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Json<Page<TrackSource>>, HandlerError> {
    let track = controller.track_of(&operator, &name)?.value.track;
    let items = controller.view().sources_of(&track).collect();
    Ok(Json(Page { items, next: None }))
}

/// Say what a program of the node does with a track, and get its secret and its sources; sent repeatedly
///
/// A publisher or a relay says where it serves the track, and is a source of it until it says nothing any more.
#[utoipa::path(operation_id = "use_track", post, path = "/v1/nodes/{node}/tracks/{track}", tag = "nodes", params(("node" = Name, Path), ("track" = Name, Path)), security(("certificate" = [])), request_body = TrackUse,
    responses((status = 200, body = TrackKey), CommonErrors, BodyErrors, NotFoundError))]
pub(super) async fn use_track(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Extension(peer): Extension<Peer>,
    Path((node, name)): Path<(Name, Name)>,
    Message(what): Message<TrackUse>,
) -> Result<Json<TrackKey>, HandlerError> {
    caller.must_be(&node)?;
    let (_, role) = controller.usable_track(&caller, &name)?;
    controller
        .on_track_use(&caller, &peer, &name, role, what)
        .await?;
    let (record, role) = controller.usable_track(&caller, &name)?;
    let Some(secret) = record.secret_for(role) else {
        let what = format!("the stored secret of the track {name} is not one: replace it");
        return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, what).into());
    };
    // Addresses of the controller's own machine are of no use to others.
    let is_here = peer.address.to_canonical().is_loopback();
    let is_reached = |source: &TrackSource| is_here || !source.serving.address.ip().is_loopback();
    let view = controller.view();
    let sources = view.sources_of(&record.track).filter(is_reached).collect();
    drop(view);
    Ok(Json(TrackKey {
        sources: TrackSource::chosen(sources, &node, what.role),
        track: name,
        role,
        number: record.number,
        secret,
        ask_every_ms: controller.config.nodes.report_every_ms,
    }))
}

/// Returns the references of a track to nodes that it did not refer to before.
fn references(view: &View, new: &Track, old: Option<&Track>) -> Result<Vec<Write>, Refusal> {
    let is_new = |node: &&Name| old.is_none_or(|old| old.role(node).is_none());
    let added: Vec<&Name> = new.members().filter(is_new).collect();
    if added.len() > MAX_NEW {
        return Err(Refusal::meaningless(format!(
            "a request may add at most {MAX_NEW} nodes; add the others with the next one"
        )));
    }
    let mut references = Vec::new();
    for node in added {
        let known = view.node(node).map(|(_, record)| record);
        let known = known.filter(|record| record.value.tenant == new.tenant);
        let revision = known.map(|record| record.revision).ok_or_else(|| {
            Refusal::not_found(format!(
                "the tenant {} has no node {node}; enrol it first: POST /v1/nodes/NAME/enrolment",
                new.tenant
            ))
        })?;
        references.extend(reference::refer(key::NODE, node, revision, &new.name));
    }
    Ok(references)
}

impl Controller {
    /// Returns a track that the operator may see.
    fn track_of<N>(
        &self,
        operator: &Operator<N>,
        name: &Name,
    ) -> Result<Versioned<TrackRecord>, Refusal> {
        let view = self.view();
        let record = view
            .tracks
            .get(name)
            .filter(|record| operator.sees(&record.value.track.tenant));
        record.cloned().ok_or_else(|| missing(name))
    }

    /// Returns a track that the node may publish, watch or relay, and its role.
    fn usable_track(
        &self,
        caller: &Certified,
        name: &Name,
    ) -> Result<(TrackRecord, TrackRole), Refusal> {
        let (view, node) = (self.view(), &caller.node.node);
        let known = view.tracks.get(name).map(|record| &record.value);
        let known = known.filter(|record| record.track.tenant == caller.tenant);
        // The certificate may have been revoked since it was checked, and the secret replaced.
        let known = known.filter(|_| view.accepted(&caller.node).is_some());
        let allowed = known.and_then(|record| Some((record.clone(), record.track.role(node)?)));
        allowed.ok_or_else(|| {
            self.metrics.refused("no_track");
            // Nodes do not learn which tracks there are.
            Refusal::not_found(format!(
                "there is no track {name} that {node} may publish, watch or relay: \
                 an operator adds it with `hawser ctl track set`"
            ))
        })
    }

    /// Rejects access to a track that the operator may not see.
    fn sight_of_track<N>(&self, operator: &Operator<N>, name: &Name) -> Result<Sight, Refusal> {
        let view = self.view();
        let sight = operator.sight(view.tracks.get(name), |record| {
            Some(&record.value.track.tenant)
        });
        sight.ok_or_else(|| missing(name))
    }

    /// Replaces the secrets of all tracks that a node may publish, watch or relay. `by` names the author for
    /// people.
    ///
    /// # Errors
    /// If one of them could not be replaced. Those before it were.
    pub(super) async fn rekey_tracks_of(
        &self,
        node: &Name,
        checked: &Checked,
        origin: &Origin,
        by: &str,
    ) -> Result<(), HandlerError> {
        let tracks: Vec<Name> = {
            let view = self.view();
            view.tracks_of(node).map(|(name, _)| name.clone()).collect()
        };
        for track in &tracks {
            self.replace_secret(track, checked, origin, by).await?;
        }
        Ok(())
    }

    async fn replace_secret(
        &self,
        name: &Name,
        checked: &Checked,
        origin: &Origin,
        by: &str,
    ) -> Result<(), HandlerError> {
        self.retrying(|| self.try_replace_secret(name, checked, origin, by))
            .await
    }

    /// Replaces the secret of a track, unless the track was deleted.
    async fn try_replace_secret(
        &self,
        name: &Name,
        checked: &Checked,
        origin: &Origin,
        by: &str,
    ) -> Result<(), HandlerError> {
        let known = self.view().tracks.get(name).cloned();
        let Some(Versioned {
            value: mut record,
            revision,
        }) = known
        else {
            return Ok(());
        };
        record.rekey();
        let write =
            Write::put(key::of(key::TRACK, name), emit(&record)).when(Expect::Revision(revision));
        let message = format!("{by} replaced the secret of the track {name}");
        let about = About::tenant(&record.track.tenant).by(origin.changes(name, revision));
        self.commit(checked, vec![write], about, "track_rekeyed", message)
            .await?;
        Ok(())
    }
}

fn missing(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no track {name}; GET /v1/tracks lists all tracks"
    ))
}
