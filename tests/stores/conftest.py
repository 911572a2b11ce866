"""An S3 for every test here that asks for one."""

from tests.spark.object_stores import aws as aws
from tests.spark.object_stores import bucket as bucket
from tests.spark.object_stores import proxy as proxy
from tests.spark.object_stores import s3 as s3
