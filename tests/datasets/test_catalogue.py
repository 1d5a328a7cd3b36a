from __future__ import annotations

import subprocess
import sys

import pytest

from gossamer.datasets import DatasetInfo, UnknownDataset, available, load


def test_everything_that_is_listed_has_one_name():
    names = [info.name for info in available()]
    assert len(names) == len(set(names))
    assert {"digits", "arxiv-like", "powerlaw", "cora", "ogbn-arxiv", "tu-mutag"} <= set(names)


def test_without_network_and_files_the_embedded_and_generated_are_ready():
    ready = {info.name for info in available() if info.ready}
    assert {"digits", "arxiv-like", "powerlaw"} <= ready
    assert not {"cora", "reddit", "zinc"} & ready


def test_a_local_file_comes_before_a_download(node_file):
    node_file("cora")
    found = {info.name: info for info in available()}
    assert found["cora"].source == "local" and found["pyg:cora"].source == "pyg"
    assert load("cora").num_nodes == load("local:cora").num_nodes == load("CORA").num_nodes == 6


def test_dashes_and_underscores_and_case_do_not_matter(node_file):
    node_file("amazon_computers")
    assert load("Amazon-Computers").num_nodes == 6
    assert load("embedded:Digits").num_nodes == 1797


def test_where_things_are_kept_can_be_said_of_any_set(node_file, tmp_path):
    node_file("cora")
    assert load("cora", root=tmp_path).num_nodes == 6 and load("digits", root=tmp_path).num_nodes == 1797


@pytest.mark.parametrize(("name", "nearest"), [("coraa", "cora"), ("arxiv_lke", "arxiv-like"), ("digts", "digits")])
def test_an_unknown_name_gets_the_nearest(name, nearest):
    with pytest.raises(UnknownDataset, match=rf"no dataset '{name}'\. Nearest: .*{nearest}.*available\(\) lists all"):
        load(name)
    assert issubclass(UnknownDataset, ValueError)


def test_names_that_cannot_be():
    with pytest.raises(UnknownDataset, match="no dataset 'pyg:digits'"):
        load("pyg:digits")
    with pytest.raises(UnknownDataset, match="must begin with one of local, embedded, generated, pyg, ogb"):
        load("snap:digits")
    with pytest.raises(UnknownDataset, match="no dataset ''"):
        load("")
    with pytest.raises(TypeError, match=r"`name` must be a string \(got int\)"):
        load(3)


def test_an_option_that_a_set_does_not_take():
    with pytest.raises(TypeError, match="'digits' takes no option 'scale'; its options are: k, seed"):
        load("digits", scale=0.1)
    with pytest.raises(TypeError, match="'arxiv-like' takes no option 'colour'; its options are: dtype, homophily"):
        load("arxiv-like", colour=1)


def test_a_line_of_the_list_prints_what_it_says():
    assert repr(DatasetInfo("a", "pyg", "node multiclass", 3)).startswith("DatasetInfo(name='a', source='pyg'")


def test_importing_needs_neither_pyg_nor_scikit_learn_nor_the_rest_of_the_package():
    script = """
import importlib.util, sys, types
package = types.ModuleType("gossamer")  # empty, in the place of the real one
package.__path__ = importlib.util.find_spec("gossamer").submodule_search_locations
sys.modules["gossamer"] = package
import gossamer.datasets
gossamer.datasets.available()
print({"torch_geometric", "sklearn", "ogb"} & set(sys.modules))
"""
    output = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert output.stdout.strip() == "set()", output.stderr
