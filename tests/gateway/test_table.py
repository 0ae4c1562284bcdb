from __future__ import annotations

from skirret_gateway.table import Model, ModelId, Replica, Slice, Table, build

A, B = Replica("10.0.0.1", 30000), Replica("10.0.0.2", 30000)


def model(name: str, *claims: str, namespace: str = "here", created: int = 1) -> Model:
    return Model(ModelId(namespace, name), created, claims or (name,))


def servers(name: str, *ready: Replica, namespace: str = "here") -> Slice:
    return Slice(ModelId(namespace, name), ready)


def found(table: Table, name: str, namespace: str = "here") -> str | None:
    route = table.find(namespace, name)
    return str(route.id) if route else None


def test_a_model_is_found_by_its_served_names_its_name_and_its_full_name() -> None:
    table = build([model("llama", "llama-3", "gpt-4")], [])
    for name in ("llama-3", "gpt-4", "llama", "here/llama"):
        assert found(table, name) == "here/llama"


def test_an_unknown_name_finds_nothing() -> None:
    table = build([model("llama")], [])
    for name in ("", "/", "mistral", "here/", "there/llama"):
        assert found(table, name) is None


def test_a_served_name_belongs_to_the_oldest_model_that_claims_it() -> None:
    table = build([model("young", "chat", created=2), model("old", "chat", created=1)], [])
    assert found(table, "chat") == "here/old"


def test_of_models_of_one_age_the_first_by_namespace_and_name_has_it() -> None:
    table = build([model("b", "chat"), model("a", "chat"), model("z", "chat", namespace="a")], [])
    assert found(table, "chat") == "here/a"
    assert found(table, "chat", "elsewhere") == "a/z"


def test_the_next_model_takes_a_name_over_when_its_owner_leaves() -> None:
    old = Model(ModelId("here", "old"), 1, ("chat",), is_leaving=True)
    table = build([old, model("young", "chat", created=2)], [])
    assert found(table, "chat") == "here/young"
    assert found(table, "old") == "here/old"


def test_a_served_name_wins_over_the_name_of_another_model() -> None:
    table = build([model("blue", "green"), model("green", "chat", created=0)], [])
    assert found(table, "green") == "here/blue"
    assert found(table, "here/green") == "here/green"


def test_a_full_name_always_works_even_if_somebody_claims_it() -> None:
    table = build([model("a", "there/b"), model("b", namespace="there", created=2)], [])
    assert found(table, "there/b") == "there/b"


def test_a_served_name_may_hold_a_slash() -> None:
    assert found(build([model("llama", "meta/llama-3")], []), "meta/llama-3") == "here/llama"


def test_a_served_name_of_the_callers_namespace_wins_over_a_name_of_another() -> None:
    models = [model("m", namespace="a"), model("x", "m", namespace="b", created=2)]
    table = build(models, [])
    assert found(table, "m", "a") == "a/m"


def test_two_namespaces_may_serve_one_name_each_to_its_own() -> None:
    old, young = model("a", "chat", namespace="a"), model("b", "chat", namespace="b", created=2)
    table = build([old, young], [])
    assert (found(table, "chat", "a"), found(table, "chat", "b")) == ("a/a", "b/b")
    assert found(table, "chat", "elsewhere") == "a/a"


def test_a_model_is_listed_by_names_that_mean_it_to_the_caller() -> None:
    old, young = (
        model("a", "chat", namespace="a"),
        model("b", "chat", "x", namespace="b", created=2),
    )
    table = build([old, young], [])
    names = {str(route.id): table.names("a", route) for route in table.routes.values()}
    assert names == {"a/a": ("chat",), "b/b": ("x",)}
    assert table.names("b", table.routes[ModelId("a", "a")]) == ("a/a",)


def test_a_plain_name_means_the_model_of_the_callers_namespace() -> None:
    models = [model("m", "x", namespace="a"), model("m", "y", namespace="b", created=2)]
    table = build(models, [])
    assert found(table, "m", "b") == "b/m"
    assert found(table, "m", "c") == "a/m"


def test_the_servers_of_all_slices_are_a_models_replicas_each_once() -> None:
    table = build([model("m")], [servers("m", B), servers("m", A, B), servers("other", A)])
    assert table.routes[ModelId("here", "m")].replicas == (A, B)


def test_a_model_without_servers_stays_known() -> None:
    assert build([model("m")], []).routes[ModelId("here", "m")].replicas == ()


def test_servers_of_a_model_that_is_gone_are_not_routed_to() -> None:
    assert build([], [servers("m", A)]).routes == {}


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert str(Replica("fd00::1", 30000)) == "[fd00::1]:30000"
